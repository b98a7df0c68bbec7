"""Makes thumbnails until SIGTERM or Ctrl-C: python3 worker.py"""

import os
from dataclasses import dataclass
from typing import Dict

from PIL import Image, UnidentifiedImageError

import howdah

worker = howdah.Worker(concurrency=os.cpu_count() or 1)


@dataclass
class Thumbnail:
    source: str
    target: str
    width: int


@worker.task("thumbnail.make")
def make(order: Thumbnail, job: howdah.Job) -> Dict[str, int]:
    if job.checkpoint:  # An earlier attempt made the thumbnail, but its ack was lost.
        return howdah.decode(job.checkpoint)
    try:
        # A file that is missing or cannot be written fails the attempt; a retry may succeed.
        with Image.open(order.source) as picture:
            picture.load()
            job.progress(0.5, "decoded")
            height = max(1, round(picture.height * order.width / picture.width))
            picture.resize((order.width, height)).save(order.target, "PNG")
    except UnidentifiedImageError as error:
        raise howdah.Fatal(error) from error
    size = {"width": order.width, "height": height}
    job.progress(1.0, "saved", checkpoint=size)
    return size


if __name__ == "__main__":
    worker.run()
