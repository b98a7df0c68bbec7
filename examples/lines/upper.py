"""One process for many jobs: reads a line of JSON for each job, and writes a line of JSON with its outcome.

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
        continue  # the job has already ended, because this program runs one job at a time
    try:
        answer(id=job["id"], result=payload(job).decode().upper())
    except UnicodeDecodeError as error:
        answer(id=job["id"], error=str(error), retry=False)  # final: a retry would get the same payload
    except Exception as error:
        answer(id=job["id"], error=repr(error))  # the job is retried by its retry policy
