"""Enqueues a job for each argument, or for each line of standard input, and prints their ids.

    python3 producer.py number.square 7 11
    seq 100 | python3 producer.py number.square
"""

import itertools
import json
import os
import sys
import uuid

import grpc

from howdah.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc

BATCH = 1_000  # jobs in a call, which stores all of them or none; at most 10,000

# A call that found no broker is made again; its request key keeps it from being stored twice.
RETRY = {
    "name": [{"service": "howdah.v1.JobService"}],
    "retryPolicy": {
        "maxAttempts": 5,
        "initialBackoff": "0.2s",
        "maxBackoff": "5s",
        "backoffMultiplier": 3,
        "retryableStatusCodes": ["UNAVAILABLE"],
    },
}


def enqueue(service, task_type, payloads):
    """Stores jobs; their ids, once they are committed."""
    jobs = [job_pb2.NewJob(task_type=task_type, payload=payload) for payload in payloads]
    request = job_service_pb2.EnqueueJobsRequest(jobs=jobs, request_key=str(uuid.uuid4()))
    return [job.id for job in service.EnqueueJobs(request, timeout=30).jobs]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    task_type, *arguments = sys.argv[1:]
    lines = (line.rstrip(b"\n") for line in sys.stdin.buffer)
    payloads = (os.fsencode(argument) for argument in arguments) if arguments else lines
    server = os.environ.get("HOWDAH_SERVER", "127.0.0.1:7432").removeprefix("http://")
    options = [("grpc.service_config", json.dumps({"methodConfig": [RETRY]}))]
    with grpc.insecure_channel(server, options) as channel:
        service = job_service_pb2_grpc.JobServiceStub(channel)
        while batch := list(itertools.islice(payloads, BATCH)):
            print(*enqueue(service, task_type, batch), sep="\n", flush=True)


if __name__ == "__main__":
    main()
