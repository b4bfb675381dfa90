package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.await;
import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.pool;
import static dev.waterwheel.clients.Calls.rejected;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.rpc.Code;
import dev.waterwheel.v1.WorkerPoolServiceGrpc;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;

class RetryTest {
  /** A server whose kind fails as unavailable. */
  private static final String PROGRAMS =
      """
      pool.main.workers = 2
      [kind.away]
      pool = "main"
      exec = ["/bin/sh", "-c", "exit 75"]
      """;

  /** The service config of deploy/, changed. */
  @SuppressWarnings("unchecked")
  static Map<String, ?> serviceConfig(Consumer<JsonObject> change) {
    try {
      var text = Files.readString(Path.of("../../../deploy/service-config.json"));
      var config = new Gson().fromJson(text, JsonObject.class);
      change.accept(config);
      return new Gson().fromJson(config, Map.class);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** A backoff far too long for these tests: a call that succeeds came back when it was told to. */
  private static void obey(JsonObject config) {
    var method = config.getAsJsonArray("methodConfig").get(0).getAsJsonObject();
    var policy = method.getAsJsonObject("retryPolicy");
    policy.addProperty("initialBackoff", "60s");
    policy.addProperty("maxBackoff", "60s");
  }

  private static WorkerPoolServiceBlockingV2Stub obedient(Server server) {
    return WorkerPoolServiceGrpc.newBlockingV2Stub(server.connect(server.address, serviceConfig(RetryTest::obey)));
  }

  @Test
  void ofARefusedCallSucceeds() throws Exception {
    try (var server = Server.start(Server.TINY)) {
      var client = server.client();
      // From now on the server knows how long its jobs run, and so when to come back.
      submit(client, "sleep", "400");
      var running = background(client, "sleep", "400");
      Calls.untilRunning(client, "tiny", 1);
      var queued = background(client, "sleep", "400");
      Calls.untilQueued(client, "tiny", 1);
      submit(obedient(server), "echo", "at last");
      var refusals = rejected(pool(client, "tiny"), "QUEUE_FULL");
      assertTrue(refusals >= 1 && refusals <= 4, refusals + " refusals");
      await(running);
      await(queued);
    }
  }

  @Test
  void ofAFailedHandlerIsForbiddenWhateverItsCode() throws Exception {
    try (var server = Server.start(PROGRAMS)) {
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
}
