"""Enqueues a job for each argument, or for each line of standard input, and prints their ids.

    python3 producer.py number.square 7 11
    seq 100 | python3 producer.py number.square
"""

import itertools
import os
import sys
import time
import uuid

import grpc

from howdah.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc

BATCH = 1_000  # jobs in a call, which stores all of them or none; at most 10,000
TRIES = 10
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def enqueue(services, task_type, payloads):
    """Stores jobs; returns their ids once they are committed."""
    jobs = [job_pb2.NewJob(task_type=task_type, payload=payload) for payload in payloads]
    # The key makes it safe to call again when an answer was lost: nothing is stored twice.
    request = job_service_pb2.EnqueueJobsRequest(jobs=jobs, request_key=str(uuid.uuid4()))
    for attempt in range(1, TRIES + 1):
        try:
            service = services[attempt % len(services)]
            return [job.id for job in service.EnqueueJobs(request, timeout=20).jobs]
        except grpc.RpcError as error:
            if error.code() not in PASSING or attempt == TRIES:
                sys.exit(f"{error.code().name}: {error.details()}")
        time.sleep(min(0.1 * 2**attempt, 5))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    task_type, *arguments = sys.argv[1:]
    lines = (line.rstrip(b"\n") for line in sys.stdin.buffer)
    payloads = (os.fsencode(argument) for argument in arguments) if arguments else lines
    servers = os.environ.get("HOWDAH_SERVER", "127.0.0.1:7432").split(",")
    services = [job_service_pb2_grpc.JobServiceStub(grpc.insecure_channel(s)) for s in servers]
    while batch := list(itertools.islice(payloads, BATCH)):
        print(*enqueue(services, task_type, batch), sep="\n", flush=True)


if __name__ == "__main__":
    main()
