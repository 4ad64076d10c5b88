"""JPEG scaling in the decoder: how much sooner a picture is ready at 256 x 256, and how far its pixels are off.

    python benchmarks/jpeg_scaling.py

The decoder leaves out coefficients, so that a picture comes out at 1/8 to 8/8 of its size; "least x2" asks for at least
512 x 512. Both ways end with the resizing of `Preprocess`. Pictures are smooth noise, quality 90; best of 6 rounds.
"""

import io
import time
from collections.abc import Callable

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.preprocess import Preprocess

FIT = Preprocess(image_size=(256, 256), resize="squash")
SIZES = ((375, 500), (768, 1024), (1500, 2000), (3000, 4000))


def picture(height: int, width: int) -> bytes:
    draw = np.random.default_rng(0)
    rough = Image.fromarray(draw.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8))
    fine = np.asarray(rough.resize((width, height), Image.BICUBIC), np.int16) + draw.integers(
        -12, 13, (height, width, 1)
    )
    file = io.BytesIO()
    Image.fromarray(fine.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def decoded(data: bytes, least: int | None) -> Tensor:
    options = {} if least is None else {"min_height": 256 * least, "min_width": 256 * least, "min_factor": 1}
    return torch.from_numpy(simplejpeg.decode_jpeg(data, **options)).permute(2, 0, 1)[None].contiguous()


def best(run: Callable[[], object]) -> float:
    run()
    taken = []
    for _ in range(6):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return 1000 * min(taken)


def main() -> None:
    torch.set_num_threads(1)
    print("| picture | decoded at | ms, whole | ms, scaled | times as fast | grey levels off, mean, largest |")
    print("|---|---|---|---|---|---|")
    for height, width in SIZES:
        data = picture(height, width)
        whole = FIT.fit(decoded(data, None))[0].float()
        slow = best(lambda data=data: FIT.fit(decoded(data, None)))
        for least in (1, 2):
            small = decoded(data, least)
            off = (FIT.fit(small)[0].float() - whole).abs()
            fast = best(lambda data=data, least=least: FIT.fit(decoded(data, least)))
            at = f"{small.shape[3]} x {small.shape[2]} (least x{least})"
            times, apart = f"{slow:.1f} | {fast:.1f} | {slow / fast:.2f}", f"{off.mean():.2f}, {off.max():.0f}"
            print(f"| {width} x {height} | {at} | {times} | {apart} |")


if __name__ == "__main__":
    main()
