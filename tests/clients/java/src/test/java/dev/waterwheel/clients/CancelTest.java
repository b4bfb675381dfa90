package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.awaitFailure;
import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.pool;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import dev.waterwheel.v1.WorkerState;
import io.grpc.Context;
import io.grpc.Status;
import org.junit.jupiter.api.Test;

class CancelTest {
  /** Bounds the time from a cancel until the worker is free. The server promises 50 ms; the machine is busy. */
  private static final long SOON_MILLIS = 1000;

  /** Polls until the pool has ended a number of jobs as cancelled and holds none, in time. */
  private static void idle(WorkerPoolServiceBlockingV2Stub client, int cancelled) throws Exception {
    var took =
        Calls.eventually(
            "the worker is free",
            () -> {
              var stats = pool(client, "one");
              var held = stats.getInFlight() + stats.getQueue().getJobs();
              return held == 0 && stats.getJobs().getCancelled() == cancelled;
            });
    assertTrue(took <= SOON_MILLIS, "free only after " + took + " ms");
    assertEquals(WorkerState.WORKER_STATE_IDLE, pool(client, "one").getWorkers(0).getState());
  }

  @Test
  void ofACallFreesItsWorkerAndItsPlaceInTheQueue() throws Exception {
    try (var server = Server.start(Server.IMPATIENT)) {
      var client = server.client();
      var context = Context.current().withCancellation();
      var running = background(context.wrap(() -> submit(client, "sleep", "60000")));
      Calls.untilRunning(client, "one", 1);
      var queued = background(context.wrap(() -> submit(client, "sleep", "60000")));
      Calls.untilQueued(client, "one", 1);
      context.cancel(null);
      idle(client, 2);
      assertEquals(Status.Code.CANCELLED, awaitFailure(running).getStatus().getCode());
      assertEquals(Status.Code.CANCELLED, awaitFailure(queued).getStatus().getCode());
      submit(client, "sleep", "1");
    }
  }
}
