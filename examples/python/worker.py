"""Squares numbers until SIGTERM or Ctrl-C: python3 worker.py TYPE [THREADS]"""
import itertools, os, queue, random, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc
from howdah.v1 import worker_service_pb2 as pb, worker_service_pb2_grpc

def handle(job):  # what it returns is the job's result; if it raises, the job is tried again later
    return str(int(job.payload) ** 2).encode()

class Worker:  # held: by token, the jobs that run, and the outcomes that are not confirmed yet
    def __init__(self, task_type, threads):
        self.task_type, self.threads, self.pool = task_type, threads, ThreadPoolExecutor(threads)
        self.requests, self.stopping, self.session_id, self.held = queue.SimpleQueue(), False, "", {}

    def stop(self, number, _):
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the program at once
        self.stopping = True
        self.requests.put(pb.WorkRequest(drain=pb.DrainRequest()))

    def run(self, job):
        try:
            outcome = pb.Outcome(id=job.id, token=job.token, ack=pb.Ack(result=handle(job)))
        except Exception as error:
            outcome = pb.Outcome(id=job.id, token=job.token, nack=pb.Nack(error=repr(error)))
        self.held[job.token] = outcome  # first: should the stream break now, the next one sends it
        self.requests.put(pb.WorkRequest(settle=pb.Settle(outcomes=[outcome])))

    def stream(self, service):  # goes on where the last one ended
        self.requests.put(None)  # nothing reads the old queue any more
        self.requests, draining = queue.SimpleQueue(), False
        leases = [pb.Lease(id=held.id, token=held.token) for held in list(self.held.values())]
        self.requests.put(pb.WorkRequest(subscribe=pb.Subscribe(
            task_type=self.task_type, window=self.threads, session_id=self.session_id, held=leases)))
        if done := [held for held in list(self.held.values()) if isinstance(held, pb.Outcome)]:
            self.requests.put(pb.WorkRequest(settle=pb.Settle(outcomes=done)))
        if self.stopping:
            self.requests.put(pb.WorkRequest(drain=pb.DrainRequest()))
        for message in service.Work(iter(self.requests.get, None)):  # which has one of these fields
            self.session_id = message.welcome.session_id or self.session_id
            for job in message.jobs.jobs:
                self.held[job.token] = job
                self.pool.submit(self.run, job)
            stored = [r for r in message.settled.results if r.status != pb.SETTLE_STATUS_UNAVAILABLE]
            for over in [*stored, *message.cancel.jobs, *message.welcome.lost]:
                self.held.pop(over.token, None)
            draining = draining or message.HasField("drain")
            if len(stored) < len(message.settled.results) or draining and not (self.held and self.stopping):
                self.requests.put(None)  # our side of the stream ends; what is held goes to the next

worker = Worker(sys.argv[1], int((sys.argv + ["4"])[2]))
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, worker.stop)
for server in itertools.cycle(os.environ.get("HOWDAH_SERVER", "127.0.0.1:7432").split(",")):
    with grpc.insecure_channel(server, [("grpc.keepalive_time_ms", 30_000)]) as channel:
        try:
            worker.stream(worker_service_pb2_grpc.WorkerServiceStub(channel))
        except grpc.RpcError as error:
            print(f"{server}: {error.code().name}: {error.details()}", file=sys.stderr)
    if worker.stopping and not worker.held: break
    time.sleep(random.uniform(0.1, 0.5))
