"""The two questions that a service answers: what is in a picture, and where the model saw it."""

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.deploy.serve_answer import Answer, Request, told
from vitrail.deploy.serve_batch import Batcher, Busy, Computed, Gate, Ticket
from vitrail.deploy.serve_fetch import SHARE, fetch, is_address, place_of
from vitrail.deploy.serve_model import Explainer, Offer, Question, Served
from vitrail.deploy.serve_overlay import contrast, data_url, overlay_png, picture_png
from vitrail.deploy.serve_upload import File, Refused, files_of, picture, read_body
from vitrail.errors import BrokenImage, Unsupported, nearest
from vitrail.tasks.predict import named_labels

TOP = 5


class Predictor:
    """Reads or fetches, decodes and computes pictures, within the room that the gate gives."""

    def __init__(self, gate: Gate, batcher: Batcher, decoders: ThreadPoolExecutor) -> None:
        self._gate, self._batcher, self._decoders = gate, batcher, decoders
        self._config, self._metrics = gate.config, gate.metrics
        self._explaining = 0
        self._one_by_one = ThreadPoolExecutor(1, thread_name_prefix="explainer")

    async def predict(self, request: Request, served: Served) -> Answer:
        """The likeliest classes of every picture."""
        start = time.monotonic()
        top = _number(request, "top", TOP, 1, len(served.engine.labels))
        with self._gate.enter() as ticket:
            files = await self._files(request, ticket)
            if len(files) > 1:
                ticket.take_images(len(files) - 1)
            results = await request.attended(self._all(files, served, top))
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
        if explainer is None or not explainer.offers:
            raise Refused(
                501, "this model cannot be explained here; name its run: vitrail serve … --explain runs/my-run"
            )
        offer = _offer(request, explainer)
        question = _question(request, offer, explainer, served)
        with self._gate.enter() as ticket:
            files = await self._files(request, ticket)
            if len(files) > 1:
                raise Refused(400, f"explain takes one picture, and {len(files)} came")
            found = await request.attended(self._explained(files[0], served, explainer, question))
        if "image/png" in request.header("accept"):
            return Answer(body=found.overlay, kind="image/png")
        target = found.target
        data = {
            "method": offer.method,
            "targeted": offer.targeted,
            "layer": question.layer,
            "head": question.head,
            "target": {"index": target, "label": served.engine.labels[target]},
            "answers": _answers(found.computed, served, len(served.engine.labels)),
            "seen": data_url(found.seen),
            "overlay": data_url(found.overlay),
            "contrast": round(found.contrast, 4),
            "generation": served.generation,
            "milliseconds": round(1000 * (time.monotonic() - start), 2),
        }
        return told(data, images=1, bytes=len(files[0].data), explained=offer.method)

    async def _files(self, request: Request, ticket: Ticket) -> list[File]:
        """What is uploaded, or lies at the address that is."""
        until = asyncio.get_running_loop().time() + SHARE * self._config.timeout
        body, content_type = await read_body(request.receive, ticket, self._config), request.header("content-type")
        self._metrics.add("received_bytes_total", amount=len(body))
        if not is_address(content_type):
            return files_of(body, content_type, self._config)
        place = place_of(body, self._config)
        file = await request.attended(fetch(place, ticket, self._config, until=until))
        self._metrics.add("fetched_bytes_total", amount=len(file.data))
        return [file]

    async def _all(self, files: list[File], served: Served, top: int) -> list[dict[str, Any]]:
        return await asyncio.gather(*(self._one(file, served, top) for file in files))

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

    async def _explained(self, file: File, served: Served, explainer: Explainer, question: Question) -> "_Explained":
        """Explanations run one after the other, beside the batches."""
        image = await self._decoded(file, served)
        computed = await self._batcher.compute(image, served)
        target = int(computed.logits.argmax()) if question.target is None else question.target
        if self._explaining >= self._config.max_explaining:
            raise Busy("full", 1)
        self._explaining += 1
        try:
            work = functools.partial(_explained, explainer, image, replace(question, target=target))
            seen, overlay, contrasted = await asyncio.get_running_loop().run_in_executor(self._one_by_one, work)
        except Unsupported as error:
            raise Refused(501, str(error)) from None
        finally:
            self._explaining -= 1
        return _Explained(computed, target, seen, overlay, contrasted)


class _Explained(NamedTuple):
    computed: Computed
    target: int
    seen: bytes  # PNG of what the model got
    overlay: bytes  # PNG
    contrast: float


def _explained(explainer: Explainer, image: Tensor, question: Question) -> tuple[bytes, bytes, float]:
    saliency = explainer(image, question)  # H W
    return picture_png(image), overlay_png(saliency), contrast(saliency)


def _answers(computed: Computed, served: Served, top: int) -> list[dict[str, Any]]:
    """The likeliest classes first."""
    probabilities = served.probabilities(computed.logits[None])
    if not bool(torch.isfinite(probabilities).all()):
        raise ValueError("the model answered with numbers that are not finite")
    chosen = served.engine.chosen(probabilities)[0].tolist()
    numbers = probabilities[0].tolist()
    labels = served.engine.labels
    return [
        {"label": labels[index], "index": index, "probability": round(numbers[index], 6), "chosen": chosen[index]}
        for index in named_labels(numbers, chosen, top=top)
    ]


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query; more than there is means all."""
    text = request.query(name)
    if text is None:
        return min(default, most)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise Refused(400, f"{name} is {text[:80]!r}; it must be a whole number, {least} or more")
    return min(int(text), most)


def _offer(request: Request, explainer: Explainer) -> Offer:
    """The method that is asked for; the first where none is named."""
    offers = {offer.method: offer for offer in explainer.offers}
    name = request.query("method") or explainer.offers[0].method
    if name not in offers:
        raise Refused(400, f"there is no method {name[:80]!r}; {nearest(name[:80], list(offers))}")
    return offers[name]


def _choice(request: Request, name: str, count: int, offer: Offer, explainer: Explainer) -> int | None:
    """The layer or head that is asked for, of so many that the method has; None where none is named."""
    text = request.query(name)
    if not text:
        return None
    if not count:
        able = [one.method for one in explainer.offers if (one.layers if name == "layer" else one.heads)]
        others = f"; these have: {', '.join(able)}" if able else ""
        raise Refused(400, f"{offer.method} has no choice of a {name}{others}")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < count):
        raise Refused(400, f"there is no {name} {text[:80]!r}; {offer.method} has {count}, from 0 to {count - 1}")
    return int(text)


def _question(request: Request, offer: Offer, explainer: Explainer, served: Served) -> Question:
    """Which class, layer and head are asked about."""
    target = _target(request, served)
    layer = _choice(request, "layer", offer.layers, offer, explainer)
    heads = offer.heads[-1 if layer is None else layer] if offer.heads else 0
    head = _choice(request, "head", heads, offer, explainer)
    return Question(method=offer.method, target=target, layer=layer, head=head)


def _target(request: Request, served: Served) -> int | None:
    """The class that is asked about, by its number or its label."""
    text, labels = request.query("target"), served.engine.labels
    if text is None or text in labels:
        return None if text is None else labels.index(text)
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(labels):
        return int(text)
    raise Refused(400, f"there is no class {text[:80]!r}; {nearest(text[:80], labels)}")
