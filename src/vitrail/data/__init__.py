"""From files to batches: reading, packing, batching, augmenting.

open_data("photos/")  -> Splits(train, val, test): datasets that read one image at a time
open_images(dataset)  -> ImageSet: packed (decoded once, memory-mapped) or streamed (decoded ahead in every epoch)
make_feed(images)     -> Feed: batches on the device, in an order that depends only on (seed, epoch)
Augment(...)          -> the batch, cropped, flipped, colour-jittered and normalised on the device
"""
