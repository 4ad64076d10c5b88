"""/predict: receives or fetches images, decodes and computes them, within the limits of the service."""

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from torch import Tensor

from vitrail.errors import BrokenImage
from vitrail.serve.batching import Batcher, Computed, Limiter, Reservation
from vitrail.serve.decoding import DecoderPool
from vitrail.serve.fetch import TIME_SHARE, allowed_url, fetch, is_json
from vitrail.serve.model import ServedModel
from vitrail.serve.overlay import data_url, display_whole, png
from vitrail.serve.request import Request
from vitrail.serve.upload import File, parse_files

if TYPE_CHECKING:
    from vitrail.data.preprocess import Preprocess
    from vitrail.tasks.answer import Answer

TOP = 5
_BAR = ("label", "text", "share", "chosen", "low", "high", "colour")
T = TypeVar("T")
Show = Callable[[Tensor], Tensor]  # uint8 1 C H W -> uint8 c h w, at display size


class Decoded(NamedTuple):
    """What the model gets of an image, the size of the image, and its pixels at display size where it is shown."""

    fitted: Tensor  # uint8 C *image_size
    size: tuple[int, int]
    shown: Tensor | None  # uint8 C h w


class Predictor:
    """Answers /predict; /explain uses its steps."""

    def __init__(self, limiter: Limiter, batcher: Batcher, decoders: DecoderPool, threads: ThreadPoolExecutor) -> None:
        self.limiter, self.config, self.metrics = limiter, limiter.config, limiter.metrics
        self._batcher, self._decoders, self._threads = batcher, decoders, threads

    async def predict(self, request: Request, served: ServedModel) -> Response:
        """The answer for every image."""
        start = time.monotonic()
        top = whole_number(request, "top", default=TOP, low=1)
        display = request.parameter("display") is not None
        with self.limiter.admit() as reservation:
            files = await self.receive(request, reservation)
            reservation.add_images(len(files))
            options: dict[str, Any] = {"reservation": reservation, "top": top, "display": display}
            each = [self._predict_file(file, request, served, **options) for file in files]
            results = await request.while_connected(_gather(each))
        computed = [result for result in results if "error" not in result]
        if not computed:
            raise HTTPException(422, results[0]["error"] if len(results) == 1 else "none of the files is a valid image")
        request.notes |= {"images": len(computed), "bytes": sum(len(file.data) for file in files)}
        request.notes["batch"] = computed[0]["batch"]
        return JSONResponse({"predictions": results, "generation": served.generation, "milliseconds": since(start)})

    async def receive(self, request: Request, reservation: Reservation) -> list[File]:
        """The files of a request: uploaded, or fetched from the URL in its body."""
        until = asyncio.get_running_loop().time() + TIME_SHARE * self.config.timeout
        body, content_type = await request.read(reservation, self.config), request.headers.get("content-type", "")
        self.metrics.add("received_bytes_total", amount=len(body))
        if not is_json(content_type):
            return parse_files(body, content_type, self.config)
        url = allowed_url(body, self.config)
        file = await request.while_connected(fetch(url, reservation, self.config, until=until))
        self.metrics.add("fetched_bytes_total", amount=len(file.data))
        return [file]

    async def decode(self, file: File, request: Request, served: ServedModel, *, show: Show | None = None) -> Decoded:
        """Decodes a file in a process; resizes and crops it to the size of the model, and for display, in a thread."""
        work = functools.partial(_fit, name=file.name, preprocess=served.engine.preprocess, show=show)
        try:
            return await self._decoders.decode(file, work, owner=request)
        except BrokenImage as error:
            self.metrics.add("broken_images_total")
            raise HTTPException(422, str(error)) from None

    async def compute(self, decoded: Decoded, request: Request, served: ServedModel) -> Computed:
        """The outputs of an image."""
        return await self._batcher.compute(decoded.fitted, served, owner=request)

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Runs work beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(work, *arguments))

    async def _predict_file(
        self, file: File, request: Request, served: ServedModel, *, reservation: Reservation, top: int, display: bool
    ) -> dict[str, Any]:
        try:
            decoded = await self.decode(file, request, served, show=display_whole if display else None)
        except HTTPException as error:
            return {"name": file.name, "error": error.detail}
        finally:
            reservation.undecoded -= 1
        computed = await self.compute(decoded, request, served)
        answer = answer_of(computed, served, top=top)
        if answer.has_position or display:  # masks of large pictures and drawings take long
            described = await self.in_thread(describe, answer, decoded, served)
        else:
            described = answer.to_json()
        spent = {"queued": round(1000 * computed.queued, 2), "computing": round(1000 * computed.computing, 2)}
        return {"name": file.name, **described, "batch": computed.batch, "milliseconds": spent}


def answer_of(computed: Computed, served: ServedModel, *, top: int) -> "Answer":
    """What the task says of one image; positions are in pixels of the model's input."""
    (answer,) = served.engine.task.decode(dict(computed.outputs), top=top)
    return answer


def describe(answer: "Answer", decoded: Decoded, served: ServedModel) -> dict[str, Any]:
    """An answer as JSON, in pixels of the picture; with what the page shows of it, where the picture was kept."""
    maps = served.engine.preprocess.maps(torch.tensor([decoded.size]))[0]  # 2 3
    placed = answer.placed(maps, decoded.size)
    if decoded.shown is None:
        return placed.to_json()
    height, width = decoded.shown.shape[1:]
    scale = torch.tensor([[width / decoded.size[1]], [height / decoded.size[0]]])  # 2 1: x, y
    small = answer.placed(maps * scale, (height, width))
    return placed.to_json() | {"display": _displayed(placed, small, decoded.shown.expand(3, -1, -1))}


def whole_number(request: Request, name: str, *, default: int, low: int) -> int:
    """A whole number of the query."""
    text = request.parameter(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= low):
        raise HTTPException(400, f"{name}={text[:80]!r} is not valid: must be a whole number, {low} or more")
    return int(text)


def since(start: float) -> float:
    """Milliseconds."""
    return round(1000 * (time.monotonic() - start), 2)


async def _gather(each: list[Any]) -> list[dict[str, Any]]:
    """All results; when one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in each]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _fit(image: Tensor, *, name: str, preprocess: "Preprocess", show: Show | None) -> Decoded:
    """Uint8 C H W of any size; what is returned are copies, as the memory of the image is used again."""
    try:
        fitted, _ = preprocess.fit(image[None])
        shown = None if show is None else show(image[None]).clone()
    except RuntimeError as error:  # a side of no pixels, or a shape that cannot be resized
        raise BrokenImage(f"{name} cannot be resized: {str(error).splitlines()[0]}") from error
    size = (image.shape[1], image.shape[2])
    return Decoded(fitted[0].clone(memory_format=torch.contiguous_format), size, shown)


def _displayed(answer: "Answer", small: "Answer", shown: Tensor) -> dict[str, Any]:
    """What the page shows: one line, bars, and the image with the answer drawn on it, if it can be drawn.

    `small` is the answer at display size. An answer of several tasks also has a line and a drawing of each.
    """
    parts = small.parts().items()
    return {
        "text": answer.text(),
        "brief": answer.brief(),
        "bars": [{name: getattr(bar, name) for name in _BAR} for bar in answer.bars()],
        "drawing": _drawn(small, shown),
        "parts": [{"name": name, "brief": part.brief(), "drawing": _drawn(part, shown)} for name, part in parts],
    }


def _drawn(answer: "Answer", shown: Tensor) -> str | None:
    drawing = answer.draw(shown)
    return None if drawing is None else data_url(png(drawing))
