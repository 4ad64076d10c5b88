"""/explain: how much each pixel of an image matters for one output of the model."""

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from torch import Tensor

from vitrail.errors import Unsupported, nearest
from vitrail.serve.batching import Computed, Overloaded
from vitrail.serve.cores import use_cores
from vitrail.serve.model import Explainer, ExplainMethod, ServedModel
from vitrail.serve.overlay import blend, contrast, data_url, display_crop, overlay, png
from vitrail.serve.predict import Decoded, Predictor, answer_of, describe, since
from vitrail.serve.priority import lower_priority
from vitrail.serve.request import Request
from vitrail.serve.upload import File


@dataclass(frozen=True, kw_only=True)
class Options:
    """The parameters of a request; None: the answer itself, the last layer, the mean of all heads."""

    method: ExplainMethod
    target: int | None
    layer: int | None
    head: int | None


class Explained(NamedTuple):
    """An explanation, with its images at display size."""

    computed: Computed
    decoded: Decoded
    target: int
    picture: Tensor  # uint8 C h w
    overlay: Tensor  # uint8 4 h w
    contrast: float


class ExplainHandler:
    """Answers /explain. Explanations run one after the other, beside the batches and at a lower priority."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor, self._config = predictor, predictor.config
        self._running = 0
        start = functools.partial(_begin, torch.get_num_threads())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explainer", initializer=start)

    async def explain(self, request: Request, served: ServedModel) -> Response:
        """The saliency map of one image: as JSON, or as a picture for `Accept: image/png`."""
        start = time.monotonic()
        explainer = served.explainer
        if explainer is None or not explainer.methods:
            raise HTTPException(501, "this model cannot be explained: start the service with --explain RUN")
        options = _options(request, explainer, served)
        with self._predictor.limiter.admit() as reservation:
            files = await self._predictor.receive(request, reservation)
            if len(files) > 1:
                raise HTTPException(400, f"/explain takes one image, got {len(files)}")
            reservation.add_images(1)
            found = await request.while_connected(self._explain(files[0], request, served, options))
        request.notes |= {"images": 1, "bytes": len(files[0].data), "explained": options.method.method}
        in_thread = self._predictor.in_thread
        if "image/png" in request.headers.get("accept", ""):
            return Response(await in_thread(_blended, found.picture, found.overlay), media_type="image/png")
        answer = answer_of(found.computed, served, top=len(served.outputs))
        data = {
            "method": options.method.method,
            "targeted": options.method.targeted,
            "layer": options.layer,
            "head": options.head,
            "target": {"index": found.target, "name": served.outputs[found.target]},
            **await in_thread(describe, answer, found.decoded._replace(shown=None), served),
            "picture": data_url(await in_thread(png, found.picture)),
            "overlay": data_url(await in_thread(png, found.overlay)),
            "contrast": round(found.contrast, 4),
            "generation": served.generation,
            "milliseconds": since(start),
        }
        return JSONResponse(data)

    def close(self) -> None:
        """Stops the thread."""
        self._thread.shutdown()

    async def _explain(self, file: File, request: Request, served: ServedModel, options: Options) -> Explained:
        assert served.explainer is not None  # noqa: S101  (checked before the body was read)
        show = functools.partial(display_crop, preprocess=served.engine.preprocess)
        decoded = await self._predictor.decode(file, request, served, show=show)
        computed = await self._predictor.compute(decoded, request, served)
        target = options.target
        if target is None:
            target = int(served.engine.task.explain_target(dict(computed.outputs), None)[0])
        if self._running >= self._config.max_explaining:
            raise Overloaded("full", 1)
        self._running += 1
        try:
            work = functools.partial(_explain, served.explainer, decoded, options, computed, target)
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Unsupported as error:
            raise HTTPException(501, str(error)) from None
        finally:
            self._running -= 1


def _explain(explainer: Explainer, decoded: Decoded, options: Options, computed: Computed, target: int) -> Explained:
    shown = decoded.shown
    assert shown is not None  # noqa: S101  (decoded for display)
    choice: dict[str, Any] = {"method": options.method.method, "layer": options.layer, "head": options.head}
    saliency = explainer(decoded.fitted, target=target, **choice)  # H W
    layer = overlay(saliency, (shown.shape[1], shown.shape[2]))
    return Explained(computed, decoded, target, shown, layer, contrast(saliency))


def _blended(image: Tensor, layer: Tensor) -> bytes:
    return png(blend(image, layer))


def _options(request: Request, explainer: Explainer, served: ServedModel) -> Options:
    method, target = _method(request, explainer), _target(request, served)
    layer = _choice(request, "layer", method.layers, method, explainer)
    heads = method.heads[-1 if layer is None else layer] if method.heads else 0
    head = _choice(request, "head", heads, method, explainer)
    return Options(method=method, target=target, layer=layer, head=head)


def _method(request: Request, explainer: Explainer) -> ExplainMethod:
    """The requested method; the first by default."""
    methods = {method.method: method for method in explainer.methods}
    name = request.parameter("method") or explainer.methods[0].method
    if name not in methods:
        raise HTTPException(400, f"unknown method {name[:80]!r}; {nearest(name[:80], list(methods))}")
    return methods[name]


def _choice(request: Request, name: str, count: int, method: ExplainMethod, explainer: Explainer) -> int | None:
    """The requested layer or head, one of `count`; None when it is not given."""
    text = request.parameter(name)
    if not text:
        return None
    if not count:
        others = [one.method for one in explainer.methods if (one.layers if name == "layer" else one.heads)]
        hint = f"; methods with it: {', '.join(others)}" if others else ""
        raise HTTPException(400, f"the method {method.method} has no parameter {name}{hint}")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < count):
        raise HTTPException(400, f"{name}={text[:80]!r} is not valid: {method.method} has {name}s 0 to {count - 1}")
    return int(text)


def _target(request: Request, served: ServedModel) -> int | None:
    """The output to explain, by its name or index; None when it is not given."""
    text, names = request.parameter("target"), served.outputs
    if text is None or text in names:
        return None if text is None else names.index(text)
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(names):
        return int(text)
    raise HTTPException(400, f"unknown target {text[:80]!r}; {nearest(text[:80], names)}")


def _begin(cores: int) -> None:
    lower_priority()
    use_cores(cores)
