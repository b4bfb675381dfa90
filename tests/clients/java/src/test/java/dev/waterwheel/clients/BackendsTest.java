package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.await;
import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.pool;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.waterwheel.v1.SubmitResponse;
import dev.waterwheel.v1.WorkerPoolServiceGrpc;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.StatusException;
import io.grpc.StatusOr;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;

class BackendsTest {
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
    drainOfOneOfTwoFailsNoCall("balanced", BackendsTest::balance);
  }

  @Test
  void drainOfOneOfTwoFailsNoCallOfARetryingClient() throws Exception {
    drainOfOneOfTwoFailsNoCall("sticky", BackendsTest::stick);
  }

  /** Keeps calls in flight over both from before the drain until after its end. */
  private static void drainOfOneOfTwoFailsNoCall(String scheme, Consumer<JsonObject> change) throws Exception {
    try (var leaver = Server.start(Server.EVERYDAY, LEAVING);
        var stayer = Server.start(Server.EVERYDAY, LEAVING)) {
      var backends = new Backends(scheme, leaver.address, stayer.address);
      NameResolverRegistry.getDefaultRegistry().register(backends);
      var channel = stayer.connect(scheme + ":///waterwheel", RetryTest.serviceConfig(change));
      var client = WorkerPoolServiceGrpc.newBlockingV2Stub(channel);
      var stop = new AtomicBoolean();
      var failures = new CopyOnWriteArrayList<StatusException>();
      var callers = new ArrayList<FutureTask<Void>>();
      for (var i = 0; i < 8; i++) {
        callers.add(
            Calls.background(
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
      Calls.eventually("the leaver works", () -> pool(left, "io").getJobs().getCompleted() > 20);
      leaver.terminate();
      assertEquals(0, leaver.end());
      var before = pool(stayed, "io").getJobs().getCompleted();
      Calls.eventually("the stayer works", () -> pool(stayed, "io").getJobs().getCompleted() > before + 50);
      stop.set(true);
      for (var caller : callers) {
        Calls.await(caller);
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
  void failsNoCallInFlightByItsGoAway() throws Exception {
    try (var server = Server.start(Server.EVERYDAY, "[drain]\nnotice = \"100ms\"\n")) {
      var client = server.client();
      var calls = new ArrayList<FutureTask<SubmitResponse>>();
      for (var i = 0; i < 50; i++) {
        calls.add(background(client, "sleep", "150"));
      }
      Calls.eventually("all jobs are taken", () -> Calls.pool(client, "io").getJobs().getAccepted() == 50);
      server.terminate();
      for (var call : calls) {
        assertTrue(await(call).hasResult());
      }
      assertEquals(0, server.end());
    }
  }
}
