package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.await;
import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.job;
import static dev.waterwheel.clients.Calls.pool;
import static dev.waterwheel.clients.Calls.rejected;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import com.google.rpc.Code;
import dev.waterwheel.v1.WorkerPoolServiceGrpc;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import java.util.ArrayList;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class RetryTest {
  /**
   * All that a client needs in order to obey the server's pushback. Its own backoff is far too long for these tests: a
   * call that succeeds came back when it was told to.
   */
  private static final String OBEDIENT =
      """
      {
        "methodConfig": [{
          "name": [{"service": "waterwheel.v1.WorkerPoolService"}],
          "retryPolicy": {
            "maxAttempts": 5,
            "initialBackoff": "60s",
            "maxBackoff": "60s",
            "backoffMultiplier": 1,
            "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]
          }
        }]
      }
      """;

  @SuppressWarnings("unchecked")
  static Map<String, ?> serviceConfig(String json) {
    return new Gson().fromJson(json, Map.class);
  }

  private static WorkerPoolServiceBlockingV2Stub obedient(Server server) {
    return WorkerPoolServiceGrpc.newBlockingV2Stub(server.connect(server.address, serviceConfig(OBEDIENT)));
  }

  private interface Call {
    void make(WorkerPoolServiceBlockingV2Stub client) throws Exception;
  }

  /** Makes a call while the pool is full for several hundred milliseconds. */
  private static void isRetriedWhenToldAndSucceeds(Call call) throws Exception {
    try (var server = Server.start(Server.TINY)) {
      var client = server.client();
      // From now on the server knows how long its jobs run, and so when to come back.
      submit(client, "sleep", "400");
      var running = background(client, "sleep", "400");
      Calls.untilRunning(client, "tiny", 1);
      var queued = background(client, "sleep", "400");
      Calls.untilQueued(client, "tiny", 1);
      call.make(obedient(server));
      var refusals = rejected(pool(client, "tiny"), "QUEUE_FULL");
      assertTrue(refusals >= 1 && refusals <= 4, refusals + " refusals");
      await(running);
      await(queued);
    }
  }

  @Test
  void ofARefusedSubmitSucceeds() throws Exception {
    isRetriedWhenToldAndSucceeds(client -> submit(client, "echo", "at last"));
  }

  @Test
  void ofARefusedStreamSucceeds() throws Exception {
    isRetriedWhenToldAndSucceeds(client -> StreamTest.read(client, job("echo", "at last"), new ArrayList<>()));
  }

  @Test
  void ofAFailedHandlerIsForbiddenWhateverItsCode() throws Exception {
    try (var server = Server.start(ErrorsTest.PROGRAMS)) {
      var client = obedient(server);
      var begin = System.nanoTime();
      var error = failure(() -> submit(client, "away", ""));
      // The policy would retry UNAVAILABLE; the pushback of -1 forbids it, for the work had started.
      check(error, Code.UNAVAILABLE, "HANDLER_FAILED");
      assertTrue(System.nanoTime() - begin < TimeUnit.SECONDS.toNanos(10));
      assertEquals(1, pool(client, "main").getJobs().getAccepted());
      assertEquals(1, pool(client, "main").getJobs().getFailed());
    }
  }

  @Test
  void ofATooLargePayloadIsForbidden() throws Exception {
    try (var server = Server.start(Server.TINY)) {
      var client = obedient(server);
      var error = failure(() -> Calls.patient(client).submit(ErrorsTest.ofSize((1 << 20) + 1)));
      check(error, Code.RESOURCE_EXHAUSTED, "PAYLOAD_TOO_LARGE");
      assertEquals(1, rejected(pool(client, "tiny"), "PAYLOAD_TOO_LARGE"));
    }
  }
}
