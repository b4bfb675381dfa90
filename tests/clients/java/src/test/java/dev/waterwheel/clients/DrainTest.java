package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.await;
import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.job;
import static dev.waterwheel.clients.Calls.submit;
import static dev.waterwheel.clients.HealthTest.healthOf;
import static io.grpc.health.v1.HealthCheckResponse.ServingStatus.NOT_SERVING;
import static io.grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.Code;
import dev.waterwheel.clients.HealthTest.Watch;
import dev.waterwheel.v1.StreamResponse;
import dev.waterwheel.v1.SubmitResponse;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;

class DrainTest {
  /** A notice that is long enough to look around in. */
  static final String LEAVING =
      """
      [drain]
      notice = "1500ms"
      finish = "15s"
      kill = "1s"
      """;

  @Test
  void tellsHealthThenRefusesAndFinishesWhatItTook() throws Exception {
    try (var server = Server.start(Server.EVERYDAY, LEAVING)) {
      var client = server.client();
      var operator = server.connect(server.operators);
      var ready = Watch.of(server.connect(), "");
      var alive = Watch.of(server.connect(), "liveness");
      var operators = Watch.of(operator, "readiness");
      for (var watch : List.of(ready, alive, operators)) {
        assertEquals(SERVING, watch.next());
      }
      var submitted = background(client, "sleep", "3000");
      var events = new ArrayList<StreamResponse>();
      var streamed =
          background(
              () -> {
                StreamTest.read(server.client(), job("sleep", "3000"), events);
                return events.get(events.size() - 1);
              });
      Calls.untilRunning(client, "io", 2);
      var open = Calls.patient(client).submitMany();
      open.write(SubmitManyTest.request("before", job("echo", "")));
      assertTrue(open.read().hasResult());

      server.terminate();
      assertEquals(NOT_SERVING, ready.next());
      assertEquals(NOT_SERVING, operators.next());
      // During the notice jobs are still taken: whoever balances the load needs time to see it.
      submit(client, "echo", "");
      for (var name : HealthTest.NAMES) {
        assertEquals(name.equals("liveness") ? SERVING : NOT_SERVING, healthOf(operator, name), name);
      }

      // After it a call that could take more jobs ends, and new ones are refused or find nobody.
      var info = check(failure(open::read), Code.UNAVAILABLE, "DRAINING");
      assertEquals("NOT_STARTED", info.getMetadataOrThrow("execution"));
      assertEquals(Status.Code.UNAVAILABLE, failure(() -> submit(client, "echo", "")).getStatus().getCode());
      assertEquals(SERVING, healthOf(operator, "liveness"));
      alive.isSilent();
      assertEquals("slept 3000 ms", await(submitted).getResult().getOutput().toStringUtf8());
      assertTrue(await(streamed).hasFinished());

      var end = server.end();
      assertEquals(0, end.exitCode());
      assertEquals(List.of(), end.receipt().lost());
      assertTrue(end.receipt().finished() >= 3, end.toString());
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
      assertEquals(0, server.end().exitCode());
    }
  }
}
