"""A cold start: images are packed in the background while the first epoch already trains."""

from collections.abc import Callable

from vitrail.data.broken import Tally
from vitrail.data.dataset import Dataset
from vitrail.data.feeds.cold import Wanted, rows_in
from vitrail.data.feeds.coming import Coming, Filling, Job, first_order
from vitrail.data.feeds.feed import ImageSet
from vitrail.data.feeds.pack_size import whole_of
from vitrail.data.feeds.packing import is_packed, wanted_file
from vitrail.data.preprocess import Preprocess
from vitrail.training.plan import Plan

MANY = 4096  # images: fewer are packed sooner than processes have started

Stored = Callable[[Dataset], Preprocess]  # how a split is stored; that of the training images is cropped from
Opened = Callable[[Dataset], ImageSet]


def begin_packing(plan: Plan, tally: Tally, stored: Stored, opened: Opened) -> dict[Dataset, ImageSet]:
    """The splits of a run that are being packed from now on; none where the training images are packed already.

    `opened` opens a split whose file exists. Files of validation and test images that are not parts of the training
    images' source are made after those of the training images.
    """
    splits = [part for part in (plan.data.train, plan.data.val, plan.data.test) if part is not None]
    main = _wanted(plan.data.train, stored(plan.data.train), whole=True)
    if main is None or len(main.dataset) < MANY or is_packed(main) or _has_pixels(splits):
        return {}
    filling, beside, later = Filling(tally), dict[str, Wanted](), dict[str, Wanted]()
    found: dict[Dataset, ImageSet] = {}
    for split in splits:
        whole = stored(split) == stored(plan.data.train)
        wanted = _wanted(split, stored(split), whole=whole)
        if wanted is None or (wanted.path != main.path and is_packed(wanted)):
            continue
        if wanted.path != main.path:
            (later if rows_in(main.dataset, wanted.dataset) is None else beside)[str(wanted.path)] = wanted
        found[split] = Coming(split, wanted, filling, lambda split=split: opened(split))  # type: ignore[misc]
    train = found[plan.data.train]
    assert isinstance(train, Coming)  # noqa: S101  (just made)
    order = first_order(train, seed=plan.config.seed, balance=plan.config.balance)
    filling.start(
        [
            Job(wanted=main, beside=list(beside.values()), order=order),
            *(
                Job(wanted=one, order=range(len(one.dataset))) for one in later.values()
            ),  # an order lets processes write
        ]
    )
    return found


def _wanted(dataset: Dataset, fit: Preprocess, *, whole: bool) -> Wanted | None:
    return wanted_file(whole_of(dataset, whole=whole), fit)


def _has_pixels(splits: list[Dataset]) -> bool:
    """Whether a target has a value for each pixel: those are packed after their images."""
    return any(target.dense is not None for split in splits for target in split.schema.values())
