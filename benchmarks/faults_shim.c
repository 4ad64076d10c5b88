/* Faults at system calls, for benchmarks/faults.py: cc -shared -fPIC -O1 -o shim.so faults_shim.c -ldl; LD_PRELOAD=shim.so
 *
 * Calls that touch paths below a folder, or files opened there, are counted. `faults_arm` chooses one of them by its
 * number and what happens at it: an error instead of the call, a signal before or after it, half a write, another clock.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NOTHING, FAIL, FAIL_ON, SIGNAL, SIGNAL_AFTER, HALF, CLOCK };  /* FAIL_ON: every later call that writes, too */
enum { READS = 0, WRITES = 1 };

static char root[PATH_MAX];
static size_t root_length;
static int action, value, log_file = -1;
static long chosen = -1;
static atomic_long counter;
static atomic_long clock_offset;
static atomic_int failing;
static atomic_char tracked[65536];

void faults_arm(const char *folder, long number, int what, int argument, int file) {
    strncpy(root, folder, sizeof root - 1);
    root_length = strlen(root);
    chosen = number; action = what; value = argument; log_file = file;
    counter = 0; failing = 0; clock_offset = 0;
}

static int inside(const char *path) {
    return root_length && path && strncmp(path, root, root_length) == 0;
}
static int watched(int file) { return root_length && file >= 0 && file < 65536 && tracked[file]; }
static void track(int file, int on) { if (file >= 0 && file < 65536) tracked[file] = on; }

static void note(const char *name, const char *path, long number) {
    char line[PATH_MAX + 64];
    if (log_file < 0) return;
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, name, path ? path : "");
    syscall(SYS_write, log_file, line, length);
}

/* 0: go on; 1: fail with errno; 2: signal after the call; 3: write half, then die */
static int point(const char *name, const char *path, int writes) {
    long number = counter++;
    if (chosen < 0) { note(name, path, number); return 0; }
    if (number != chosen) {
        if (failing && writes) { errno = value; return 1; }
        return 0;
    }
    note(name, path, number);
    switch (action) {
        case FAIL_ON: failing = 1; /* fall through */
        case FAIL: errno = value; return 1;
        case SIGNAL: syscall(SYS_kill, getpid(), value); return 0;
        case SIGNAL_AFTER: return 2;
        case HALF: return 3;
        case CLOCK: clock_offset = value; return 0;
    }
    return 0;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define AT(name, path, writes, call) do { \
    int what = point(name, path, writes); \
    if (what == 1) return -1; \
    __typeof__(call) found = call; \
    if (what >= 2) { int kept = errno; syscall(SYS_kill, getpid(), SIGKILL); errno = kept; } \
    return found; } while (0)

static int opened(const char *name, const char *path, int flags, int file, int what) {
    (void)name; (void)flags;
    if (file >= 0) track(file, 1);
    if (what >= 2) syscall(SYS_kill, getpid(), SIGKILL);
    return file;
}

#define OPEN(symbol) \
int symbol(const char *path, int flags, ...) { \
    REAL(int, symbol, const char *, int, ...); \
    va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
    if (!inside(path)) { int file = real(path, flags, mode); track(file, 0); return file; } \
    int what = point("open", path, (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0); \
    if (what == 1) return -1; \
    return opened("open", path, flags, real(path, flags, mode), what); \
}
OPEN(open) OPEN(open64)
#define OPENAT(symbol) \
int symbol(int folder, const char *path, int flags, ...) { \
    REAL(int, symbol, int, const char *, int, ...); \
    va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
    if (!inside(path)) { int file = real(folder, path, flags, mode); track(file, 0); return file; } \
    int what = point("open", path, (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0); \
    if (what == 1) return -1; \
    return opened("open", path, flags, real(folder, path, flags, mode), what); \
}
OPENAT(openat) OPENAT(openat64)

int close(int file) {
    REAL(int, close, int);
    if (!watched(file)) return real(file);
    track(file, 0);
    int what = point("close", "", READS);
    int found = real(file);  /* Linux closes the file whatever it answers */
    if (what >= 2) syscall(SYS_kill, getpid(), SIGKILL);
    if (what == 1) { errno = value; return -1; }
    return found;
}

ssize_t write(int file, const void *data, size_t count) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (!watched(file)) return real(file, data, count);
    int what = point("write", "", WRITES);
    if (what == 1) return -1;
    ssize_t found = real(file, data, what == 3 ? count / 2 : count);
    if (what >= 2) syscall(SYS_kill, getpid(), SIGKILL);
    return found;
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    if (!watched(file)) return real(file, parts, count);
    AT("writev", "", WRITES, real(file, parts, count));
}
#define PWRITE(symbol) ssize_t symbol(int file, const void *data, size_t count, off_t at) { \
    REAL(ssize_t, symbol, int, const void *, size_t, off_t); \
    if (!watched(file)) return real(file, data, count, at); \
    AT("pwrite", "", WRITES, real(file, data, count, at)); }
PWRITE(pwrite) PWRITE(pwrite64)
ssize_t read(int file, void *data, size_t count) {
    REAL(ssize_t, read, int, void *, size_t);
    if (!watched(file)) return real(file, data, count);
    AT("read", "", READS, real(file, data, count));
}
#define PREAD(symbol) ssize_t symbol(int file, void *data, size_t count, off_t at) { \
    REAL(ssize_t, symbol, int, void *, size_t, off_t); \
    if (!watched(file)) return real(file, data, count, at); \
    AT("pread", "", READS, real(file, data, count, at)); }
PREAD(pread) PREAD(pread64)

#define ON_FILE(symbol, name, writes) int symbol(int file) { \
    REAL(int, symbol, int); if (!watched(file)) return real(file); AT(name, "", writes, real(file)); }
ON_FILE(fsync, "fsync", WRITES) ON_FILE(fdatasync, "fdatasync", WRITES)
#define TRUNCATE(symbol) int symbol(int file, off_t size) { \
    REAL(int, symbol, int, off_t); if (!watched(file)) return real(file, size); AT("ftruncate", "", WRITES, real(file, size)); }
TRUNCATE(ftruncate) TRUNCATE(ftruncate64)
#define LSEEK(symbol) off_t symbol(int file, off_t at, int from) { \
    REAL(off_t, symbol, int, off_t, int); if (!watched(file)) return real(file, at, from); AT("lseek", "", READS, real(file, at, from)); }
LSEEK(lseek) LSEEK(lseek64)
int flock(int file, int how) {
    REAL(int, flock, int, int); if (!watched(file)) return real(file, how); AT("flock", "", READS, real(file, how)); }
int fchmod(int file, mode_t mode) {
    REAL(int, fchmod, int, mode_t); if (!watched(file)) return real(file, mode); AT("fchmod", "", WRITES, real(file, mode)); }
int fstat(int file, struct stat *facts) {
    REAL(int, fstat, int, struct stat *); if (!watched(file)) return real(file, facts); AT("fstat", "", READS, real(file, facts)); }
int fstat64(int file, struct stat64 *facts) {
    REAL(int, fstat64, int, struct stat64 *); if (!watched(file)) return real(file, facts); AT("fstat", "", READS, real(file, facts)); }

#define ON_PATH(symbol, name, writes) int symbol(const char *path) { \
    REAL(int, symbol, const char *); if (!inside(path)) return real(path); AT(name, path, writes, real(path)); }
ON_PATH(unlink, "unlink", WRITES) ON_PATH(rmdir, "rmdir", WRITES)
#define STAT(symbol, kind) int symbol(const char *path, struct kind *facts) { \
    REAL(int, symbol, const char *, struct kind *); if (!inside(path)) return real(path, facts); \
    AT("stat", path, READS, real(path, facts)); }
STAT(stat, stat) STAT(stat64, stat64) STAT(lstat, stat) STAT(lstat64, stat64)
#define STATAT(symbol, kind) int symbol(int folder, const char *path, struct kind *facts, int flags) { \
    REAL(int, symbol, int, const char *, struct kind *, int); if (!inside(path)) return real(folder, path, facts, flags); \
    AT("stat", path, READS, real(folder, path, facts, flags)); }
STATAT(fstatat, stat) STATAT(fstatat64, stat64)
int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t); if (!inside(path)) return real(path, mode); AT("mkdir", path, WRITES, real(path, mode)); }
int chmod(const char *path, mode_t mode) {
    REAL(int, chmod, const char *, mode_t); if (!inside(path)) return real(path, mode); AT("chmod", path, WRITES, real(path, mode)); }
int truncate64(const char *path, off_t size) {
    REAL(int, truncate64, const char *, off_t); if (!inside(path)) return real(path, size); AT("truncate", path, WRITES, real(path, size)); }
int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int); if (!inside(path)) return real(folder, path, flags); AT("unlink", path, WRITES, real(folder, path, flags)); }
int rename(const char *old, const char *new) {
    REAL(int, rename, const char *, const char *); if (!inside(new)) return real(old, new); AT("rename", new, WRITES, real(old, new)); }
int renameat(int a, const char *old, int b, const char *new) {
    REAL(int, renameat, int, const char *, int, const char *); if (!inside(new)) return real(a, old, b, new);
    AT("rename", new, WRITES, real(a, old, b, new)); }
int access(const char *path, int how) {
    REAL(int, access, const char *, int); if (!inside(path)) return real(path, how); AT("access", path, READS, real(path, how)); }

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    if (!inside(path)) return real(path);
    int what = point("opendir", path, READS);
    if (what == 1) return NULL;
    DIR *found = real(path);
    if (what >= 2) syscall(SYS_kill, getpid(), SIGKILL);
    return found;
}
#define MMAP(symbol) void *symbol(void *at, size_t size, int access, int flags, int file, off_t from) { \
    REAL(void *, symbol, void *, size_t, int, int, int, off_t); \
    if (!watched(file)) return real(at, size, access, flags, file, from); \
    int what = point("mmap", "", READS); \
    if (what == 1) return MAP_FAILED; \
    void *found = real(at, size, access, flags, file, from); \
    if (what >= 2) syscall(SYS_kill, getpid(), SIGKILL); \
    return found; }
MMAP(mmap) MMAP(mmap64)

int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int found = real(which, now);
    if (which == CLOCK_REALTIME) now->tv_sec += clock_offset;
    return found;
}
