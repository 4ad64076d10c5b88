"""The two questions that a service answers: what is in a picture, and where the model saw it."""

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from vitrail.deploy.serve_answer import Answer, Request, told
from vitrail.deploy.serve_batch import Batcher, Busy, Computed, Gate, Ticket
from vitrail.deploy.serve_model import Explainer, Served
from vitrail.deploy.serve_overlay import contrast, data_url, overlay_png, picture_png
from vitrail.deploy.serve_upload import File, Refused, files_of, picture, read_body
from vitrail.errors import BrokenImage, Unsupported, nearest

TOP = 5


class Predictor:
    """Reads, decodes and computes what is uploaded, within the room that the gate gives."""

    def __init__(self, gate: Gate, batcher: Batcher, decoders: ThreadPoolExecutor) -> None:
        self._gate, self._batcher, self._decoders = gate, batcher, decoders
        self._config, self._metrics = gate.config, gate.metrics
        self._explaining = 0
        self._one_by_one = ThreadPoolExecutor(1, thread_name_prefix="explainer")

    async def predict(self, request: Request, served: Served) -> Answer:
        """The likeliest classes of every uploaded picture."""
        start = time.monotonic()
        top = _number(request, "top", TOP, 1, len(served.engine.labels))
        with self._gate.enter() as ticket:
            files = await self._files(request, ticket)
            if len(files) > 1:
                ticket.take_images(len(files) - 1)
            results = await asyncio.gather(*(self._one(file, served, top) for file in files))
        read = [result for result in results if "error" not in result]
        if not read:
            raise Refused(422, results[0]["error"] if len(results) == 1 else "none of the pictures can be decoded")
        milliseconds = round(1000 * (time.monotonic() - start), 2)
        data = {"predictions": results, "generation": served.generation, "milliseconds": milliseconds}
        return told(data, images=len(read), bytes=sum(len(file.data) for file in files), batch=read[0]["batch"])

    async def explain(self, request: Request, served: Served) -> Answer:
        """How much each pixel of one picture speaks for a class: the likeliest, or the one asked for."""
        start = time.monotonic()
        explainer = served.explainer
        if explainer is None or not explainer.methods:
            raise Refused(
                501, "this model cannot be explained here; name its run: vitrail serve … --explain runs/my-run"
            )
        method = request.query("method") or explainer.methods[0]
        if method not in explainer.methods:
            raise Refused(400, f"there is no method {method[:80]!r}; {nearest(method[:80], explainer.methods)}")
        target = _target(request, served)
        with self._gate.enter() as ticket:
            files = await self._files(request, ticket)
            if len(files) > 1:
                raise Refused(400, f"explain takes one picture, and {len(files)} came")
            image = await self._decoded(files[0], served)
            computed = await self._batcher.compute(image, served)
            chosen = int(computed.logits.argmax()) if target is None else target
            saliency = await self._saliency(explainer, image, method, chosen)
        if "image/png" in request.header("accept"):
            return Answer(body=overlay_png(saliency), kind="image/png")
        data = {
            "method": method,
            "target": {"index": chosen, "label": served.engine.labels[chosen]},
            "answers": _answers(computed, served, len(served.engine.labels)),
            "seen": data_url(picture_png(image)),
            "overlay": data_url(overlay_png(saliency)),
            "contrast": round(contrast(saliency), 4),
            "generation": served.generation,
            "milliseconds": round(1000 * (time.monotonic() - start), 2),
        }
        return told(data, images=1, bytes=len(files[0].data), explained=method)

    async def _files(self, request: Request, ticket: Ticket) -> list[File]:
        body = await read_body(request.receive, ticket, self._config)
        self._metrics.add("received_bytes_total", amount=len(body))
        return files_of(body, request.header("content-type"), self._config)

    async def _one(self, file: File, served: Served, top: int) -> dict[str, Any]:
        try:
            image = await self._decoded(file, served)
        except Refused as refused:
            return {"name": file.name, "error": refused.sentence}
        computed = await self._batcher.compute(image, served)
        spent = {"queued": round(1000 * computed.queued, 2), "computing": round(1000 * computed.computing, 2)}
        return {
            "name": file.name,
            "answers": _answers(computed, served, top),
            "batch": computed.batch,
            "milliseconds": spent,
        }

    async def _decoded(self, file: File, served: Served) -> Tensor:
        """Uint8 C H W, at the size of the model."""
        work = functools.partial(picture, file, served.engine, self._config)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._decoders, work)
        except BrokenImage as error:
            self._metrics.add("broken_images_total")
            raise Refused(422, str(error)) from None

    async def _saliency(self, explainer: Explainer, image: Tensor, method: str, target: int) -> Tensor:
        """Float32 H W; explanations run one after the other, beside the batches."""
        if self._explaining >= self._config.max_explaining:
            raise Busy("full", 1)
        self._explaining += 1
        try:
            work = functools.partial(explainer, image, method, target)
            return await asyncio.get_running_loop().run_in_executor(self._one_by_one, work)
        except Unsupported as error:
            raise Refused(501, str(error)) from None
        finally:
            self._explaining -= 1


def _answers(computed: Computed, served: Served, top: int) -> list[dict[str, Any]]:
    """The likeliest classes first."""
    probabilities = served.probabilities(computed.logits[None])
    if not bool(torch.isfinite(probabilities).all()):
        raise ValueError("the model answered with numbers that are not finite")
    chosen = served.engine.chosen(probabilities)[0].tolist()
    numbers = probabilities[0].tolist()
    labels = served.engine.labels
    best = sorted(range(len(numbers)), key=lambda index: -numbers[index])[:top]
    return [
        {"label": labels[index], "index": index, "probability": round(numbers[index], 6), "chosen": chosen[index]}
        for index in best
    ]


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query; more than there is means all."""
    text = request.query(name)
    if text is None:
        return min(default, most)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise Refused(400, f"{name} is {text[:80]!r}; it must be a whole number, {least} or more")
    return min(int(text), most)


def _target(request: Request, served: Served) -> int | None:
    """The class that is asked about, by its number or its label."""
    text, labels = request.query("target"), served.engine.labels
    if text is None or text in labels:
        return None if text is None else labels.index(text)
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(labels):
        return int(text)
    raise Refused(400, f"there is no class {text[:80]!r}; {nearest(text[:80], labels)}")
