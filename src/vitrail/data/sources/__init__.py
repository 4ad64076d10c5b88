"""Readers of folders, tables, arrays, pickles and shards, one file each."""
