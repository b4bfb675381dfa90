package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.await;
import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.detail;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.job;
import static dev.waterwheel.clients.Calls.pool;
import static dev.waterwheel.clients.Calls.pushback;
import static dev.waterwheel.clients.Calls.rejected;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.util.Durations;
import com.google.rpc.BadRequest;
import com.google.rpc.Code;
import com.google.rpc.RetryInfo;
import dev.waterwheel.v1.Job;
import dev.waterwheel.v1.SubmitRequest;
import io.grpc.StatusException;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

class ErrorsTest {
  /** A server whose kind fails as unavailable. */
  static final String PROGRAMS =
      """
      [pool.main]
      workers = 2
      [kind.away]
      pool = "main"
      exec = ["/bin/sh", "-c", "exit 75"]
      """;

  /** Fields and descriptions of a BadRequest. */
  private static Map<String, String> violations(StatusException error) throws Exception {
    var violations = detail(error, BadRequest.class).orElseThrow().getFieldViolationsList().stream();
    return violations.collect(
        Collectors.toMap(BadRequest.FieldViolation::getField, BadRequest.FieldViolation::getDescription));
  }

  @Test
  void everyInvalidFieldIsNamed() throws Exception {
    var job = job("echo", "").toBuilder().setTenant("t".repeat(129)).setOrderingKey("a\nb");
    try (var server = Server.start(Server.EVERYDAY)) {
      var client = Calls.patient(server.client());
      var error = failure(() -> client.submit(SubmitRequest.newBuilder().setJob(job).build()));
      var info = check(error, Code.INVALID_ARGUMENT, "INVALID_FIELD");
      assertEquals("NOT_STARTED", info.getMetadataOrThrow("execution"));
      assertEquals(Set.of("job.tenant", "job.ordering_key"), violations(error).keySet());
    }
  }

  @Test
  void payloadTooLargeIsNotToBeRetried() throws Exception {
    try (var server = Server.start(Server.TINY)) {
      var client = Calls.patient(server.client());
      // Just over the limit the job is refused; far over it the message is not even read.
      for (var size : new int[] {(1 << 20) + 1, 3 << 20}) {
        var error = failure(() -> client.submit(ofSize(size)));
        var info = check(error, Code.RESOURCE_EXHAUSTED, "PAYLOAD_TOO_LARGE");
        assertEquals("NOT_STARTED", info.getMetadataOrThrow("execution"));
        assertEquals(-1, pushback(error));
      }
      client.submit(ofSize(1 << 20));
    }
  }

  static SubmitRequest ofSize(int bytes) {
    var job = Job.newBuilder().setKind("echo").setPayload(ByteString.copyFrom(new byte[bytes]));
    return SubmitRequest.newBuilder().setJob(job).build();
  }

  @Test
  void queueFullSaysWhenToComeBack() throws Exception {
    try (var server = Server.start(Server.TINY)) {
      var client = server.client();
      var running = background(client, "sleep", "1500");
      Calls.untilRunning(client, "tiny", 1);
      var queued = background(client, "echo", "");
      Calls.untilQueued(client, "tiny", 1);
      var error = failure(() -> submit(client, "echo", ""));
      var info = check(error, Code.RESOURCE_EXHAUSTED, "QUEUE_FULL");
      assertEquals("NOT_STARTED", info.getMetadataOrThrow("execution"));
      assertEquals("tiny", info.getMetadataOrThrow("pool"));
      var retry = detail(error, RetryInfo.class).orElseThrow().getRetryDelay();
      assertTrue(pushback(error) > 0, error.getTrailers().toString());
      assertEquals(pushback(error), Durations.toMillis(retry));
      assertEquals(1, rejected(pool(client, "tiny"), "QUEUE_FULL"));
      await(running);
      await(queued);
    }
  }
}
