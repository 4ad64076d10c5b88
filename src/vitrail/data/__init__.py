"""Files -> image batches: reading, packing, batching, augmenting.

open_data("photos/")  -> Splits(train, val, test): datasets that read one image at a time
pack(dataset, ...)    -> Packed: all images of a dataset, decoded once, uint8, memory-mapped
Batches(packed, ...)  -> batches on the device, in an order that (seed, epoch) alone decides
Augment(...)          -> the batch, cropped, flipped, coloured, normalised, on the device
"""
