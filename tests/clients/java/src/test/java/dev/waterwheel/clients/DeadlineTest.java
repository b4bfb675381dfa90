package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.awaitFailure;
import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.detail;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.pool;
import static dev.waterwheel.clients.Calls.pushback;
import static dev.waterwheel.clients.Calls.submission;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.Code;
import com.google.rpc.ErrorInfo;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import dev.waterwheel.v1.WorkerState;
import io.grpc.Context;
import io.grpc.Status;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class DeadlineTest {
  @Test
  void exceededArrivesWithItsDetailsBeforeTheOwnTimer() throws Exception {
    try (var server = Server.start(Server.IMPATIENT)) {
      var client = server.client();
      pool(client, "one"); // connects
      var told = 0;
      for (var i = 0; i < 10; i++) {
        var timed = client.withDeadlineAfter(600, TimeUnit.MILLISECONDS);
        var error = failure(() -> timed.submit(submission("sleep", "60000")));
        // The client's own timer knows no details.
        if (detail(error, ErrorInfo.class).isEmpty()) {
          System.out.println("the own timer was first: " + error);
          continue;
        }
        var info = check(error, Code.DEADLINE_EXCEEDED, "RUN_TIMEOUT");
        assertEquals("STARTED", info.getMetadataOrThrow("execution"));
        assertEquals("sleep", info.getMetadataOrThrow("kind"));
        assertEquals("one", info.getMetadataOrThrow("pool"));
        assertTrue(Double.parseDouble(info.getMetadataOrThrow("run_ms")) > 300, info.toString());
        assertEquals(-1, pushback(error));
        told++;
      }
      assertTrue(told >= 9, told + " of 10 calls were told why they ended");
    }
  }

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
  void cancelOfACallFreesItsWorkerAndItsPlaceInTheQueue() throws Exception {
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
