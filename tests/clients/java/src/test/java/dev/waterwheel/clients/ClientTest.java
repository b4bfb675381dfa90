package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.await;
import static dev.waterwheel.clients.Calls.awaitFailure;
import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.detail;
import static dev.waterwheel.clients.Calls.eventually;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.pool;
import static dev.waterwheel.clients.Calls.pushback;
import static dev.waterwheel.clients.Calls.rejected;
import static dev.waterwheel.clients.Calls.submission;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.rpc.Code;
import com.google.rpc.ErrorInfo;
import dev.waterwheel.v1.StreamRequest;
import dev.waterwheel.v1.StreamResponse;
import dev.waterwheel.v1.SubmitResponse;
import dev.waterwheel.v1.WorkerPoolServiceGrpc;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import dev.waterwheel.v1.WorkerState;
import io.grpc.Context;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusOr;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;

/** What a client library decides: who is first at a deadline, what a cancel does, whether to retry, and what a drain does to its calls. */
class ClientTest {
  @Test
  void deadlineExceededArrivesWithItsDetailsBeforeTheOwnTimer() throws Exception {
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

  @Test
  void streamThatFailsEndsWithAStatusAfterItsEvents() throws Exception {
    var nap =
        """
        [kind.nap]
        pool = "io"
        builtin = "sleep"
        run_timeout = "300ms"
        """;
    try (var server = Server.start(Server.EVERYDAY, nap)) {
      var events = new ArrayList<StreamResponse>();
      var request = StreamRequest.newBuilder().setJob(Calls.job("nap", "60000")).build();
      var call = Calls.patient(server.client()).stream(request);
      var error = failure(() -> {
        for (var event = call.read(); event != null; event = call.read()) {
          events.add(event);
        }
      });
      var info = check(error, Code.DEADLINE_EXCEEDED, "RUN_TIMEOUT");
      assertEquals(events.get(0).getStarted().getJobId(), info.getMetadataOrThrow("job"));
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
    return WorkerPoolServiceGrpc.newBlockingV2Stub(server.connect(server.address, serviceConfig(ClientTest::obey)));
  }

  @Test
  void retryOfARefusedCallSucceeds() throws Exception {
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
  void retryOfAFailedHandlerIsForbiddenWhateverItsCode() throws Exception {
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

  /** A notice that is long enough to look around in. */
  private static final String LEAVING =
      """
      [drain]
      notice = "1500ms"
      finish = "15s"
      kill = "1s"
      """;

  /** Spreads calls over the backends that say SERVING, and never retries. */
  private static void balance(JsonObject config) {
    config.remove("methodConfig");
  }

  /** Stays with one backend until it refuses, and then retries elsewhere. */
  private static void stick(JsonObject config) {
    config.remove("healthCheckConfig");
    config.add("loadBalancingConfig", JsonParser.parseString("[{\"pick_first\": {}}]"));
  }

  @Test
  void drainOfOneOfTwoFailsNoCallOfABalancingClient() throws Exception {
    drainOfOneOfTwoFailsNoCall("balanced", ClientTest::balance);
  }

  @Test
  void drainOfOneOfTwoFailsNoCallOfARetryingClient() throws Exception {
    drainOfOneOfTwoFailsNoCall("sticky", ClientTest::stick);
  }

  /** Keeps calls in flight over both from before the drain until after its end. */
  private static void drainOfOneOfTwoFailsNoCall(String scheme, Consumer<JsonObject> change) throws Exception {
    try (var leaver = Server.start(Server.EVERYDAY, LEAVING);
        var stayer = Server.start(Server.EVERYDAY, LEAVING)) {
      var backends = new Backends(scheme, leaver.address, stayer.address);
      NameResolverRegistry.getDefaultRegistry().register(backends);
      var channel = stayer.connect(scheme + ":///waterwheel", serviceConfig(change));
      var client = WorkerPoolServiceGrpc.newBlockingV2Stub(channel);
      var stop = new AtomicBoolean();
      var failures = new CopyOnWriteArrayList<StatusException>();
      var callers = new ArrayList<FutureTask<Void>>();
      for (var i = 0; i < 8; i++) {
        callers.add(
            background(
                () -> {
                  while (!stop.get()) {
                    try {
                      submit(client, "sleep", "20");
                    } catch (StatusException failure) {
                      failures.add(failure);
                    }
                  }
                  return null;
                }));
      }
      var left = leaver.client();
      var stayed = stayer.client();
      eventually("the leaver works", () -> pool(left, "io").getJobs().getCompleted() > 20);
      leaver.terminate();
      assertEquals(0, leaver.end());
      var before = pool(stayed, "io").getJobs().getCompleted();
      eventually("the stayer works", () -> pool(stayed, "io").getJobs().getCompleted() > before + 50);
      stop.set(true);
      for (var caller : callers) {
        await(caller);
      }
      NameResolverRegistry.getDefaultRegistry().deregister(backends);
      assertEquals(List.of(), failures);
    }
  }

  /** Resolves every name of one scheme to the same addresses. */
  private static final class Backends extends NameResolverProvider {
    private final String scheme;
    private final List<EquivalentAddressGroup> addresses;

    Backends(String scheme, String... addresses) {
      this.scheme = scheme;
      this.addresses = Arrays.stream(addresses).map(Backends::group).toList();
    }

    private static EquivalentAddressGroup group(String address) {
      var parts = address.split(":");
      return new EquivalentAddressGroup(new InetSocketAddress(parts[0], Integer.parseInt(parts[1])));
    }

    @Override
    public NameResolver newNameResolver(URI target, NameResolver.Args args) {
      return new NameResolver() {
        @Override
        public String getServiceAuthority() {
          return "waterwheel";
        }

        @Override
        public void start(Listener2 listener) {
          listener.onResult(ResolutionResult.newBuilder().setAddressesOrError(StatusOr.fromValue(addresses)).build());
        }

        @Override
        public void shutdown() {}
      };
    }

    @Override
    public String getDefaultScheme() {
      return scheme;
    }

    @Override
    protected boolean isAvailable() {
      return true;
    }

    @Override
    protected int priority() {
      return 5;
    }
  }

  @Test
  void goAwayFailsNoCallInFlight() throws Exception {
    try (var server = Server.start(Server.EVERYDAY, "[drain]\nnotice = \"100ms\"\n")) {
      var client = server.client();
      var calls = new ArrayList<FutureTask<SubmitResponse>>();
      for (var i = 0; i < 50; i++) {
        calls.add(background(client, "sleep", "150"));
      }
      eventually("all jobs are taken", () -> pool(client, "io").getJobs().getAccepted() == 50);
      server.terminate();
      for (var call : calls) {
        assertTrue(await(call).hasResult());
      }
      assertEquals(0, server.end());
    }
  }
}
