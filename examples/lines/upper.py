"""One process for many jobs: a line of JSON comes for each, a line of JSON goes back.

howdah work text.upper --lines --jobs 100 --argv python3 examples/lines/upper.py
"""

import base64
import json
import sys


def answer(**fields):
    print(json.dumps(fields), flush=True)


def payload(job):
    if "payload_base64" in job:
        return base64.b64decode(job["payload_base64"])
    return job["payload"].encode()


for line in sys.stdin:
    job = json.loads(line)
    if "cancel" in job:
        continue  # jobs are done one after the other: that one has been answered, or will be
    try:
        answer(id=job["id"], result=payload(job).decode().upper())
    except UnicodeDecodeError as error:
        answer(id=job["id"], error=str(error), retry=False)  # it would fail the next time too
    except Exception as error:
        answer(id=job["id"], error=repr(error))  # tried again, when the retry policy says
