"""Squares numbers until SIGTERM or Ctrl-C: python3 worker.py TYPE [THREADS]"""
import os, queue, random, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc
from howdah.v1 import worker_service_pb2 as pb, worker_service_pb2_grpc

def handle(job):
    """The work: what it returns is the job's result; if it raises, the job is tried again later."""
    return str(int(job.payload) ** 2).encode()

class Worker:
    def __init__(self, task_type, threads):
        self.task_type, self.threads, self.pool = task_type, threads, ThreadPoolExecutor(threads)
        self.requests, self.stopping = queue.SimpleQueue(), False
        self.session_id, self.held = "", {}  # by token: jobs that run, outcomes not yet confirmed

    def stop(self, *_):
        self.stopping = True
        self.requests.put(pb.WorkRequest(drain=pb.DrainRequest()))

    def run(self, job):
        try:
            outcome = pb.Outcome(id=job.id, token=job.token, ack=pb.Ack(result=handle(job)))
        except Exception as error:
            outcome = pb.Outcome(id=job.id, token=job.token, nack=pb.Nack(error=repr(error)))
        self.held[job.token] = outcome  # first: should the stream break now, the next one sends it
        self.requests.put(pb.WorkRequest(settle=pb.Settle(outcomes=[outcome])))

    def stream(self, service):
        """Goes on where the last stream ended; returns the seconds to wait before the next."""
        self.requests, held, drain = queue.SimpleQueue(), list(self.held.values()), None
        self.requests.put(pb.WorkRequest(subscribe=pb.Subscribe(
            task_type=self.task_type, window=self.threads, session_id=self.session_id,
            held=[pb.Lease(id=lease.id, token=lease.token) for lease in held])))
        for outcome in (lease for lease in held if isinstance(lease, pb.Outcome)):
            self.requests.put(pb.WorkRequest(settle=pb.Settle(outcomes=[outcome])))
        if self.stopping:
            self.requests.put(pb.WorkRequest(drain=pb.DrainRequest()))
        for message in service.Work(iter(self.requests.get, None)):  # one of its fields is set
            self.session_id = message.welcome.session_id or self.session_id
            for job in message.jobs.jobs:
                self.held[job.token] = job
                self.pool.submit(self.run, job)
            for over in [*message.settled.results, *message.cancel.jobs, *message.welcome.lost]:
                self.held.pop(over.token, None)
            drain = message.drain if message.HasField("drain") else drain
            if drain and (not self.held or drain.reason == pb.DRAIN_REASON_SHUTDOWN):
                self.requests.put(None)  # our side of the stream ends, then the broker's
        return drain.reconnect_after.ToMilliseconds() / 1000 if drain else 1
