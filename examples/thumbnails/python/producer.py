"""Enqueues a thumbnail for each PNG file of a directory, and prints what has become of them.

python3 producer.py PICTURES THUMBNAILS
"""

import sys
from pathlib import Path

import howdah

WIDTH = 128


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pictures, thumbnails = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    thumbnails.mkdir(parents=True, exist_ok=True)
    jobs = []
    for source in sorted(pictures.glob("*.png")):
        payload = {"source": str(source), "target": str(thumbnails / source.name), "width": WIDTH}
        # While a job with this key is unfinished, the picture is not enqueued again.
        jobs.append(howdah.new_job("thumbnail.make", payload, key=str(source)[-200:]))
    with howdah.Client() as client:
        names = {done.id: Path(job.key).name for done, job in zip(client.enqueue_many(jobs), jobs)}
        for job in client.wait(names, timeout=60):
            if job.state == howdah.v1.JOB_STATE_SUCCEEDED:
                size = howdah.decode(job.result)
                print(f"{names[job.id]} {size['width']}x{size['height']}")
            else:
                print(f"{names[job.id]} failed: {job.failures[-1].error}")


if __name__ == "__main__":
    main()
