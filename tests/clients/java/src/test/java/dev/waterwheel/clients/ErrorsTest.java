package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.detail;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.job;
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.google.rpc.BadRequest;
import com.google.rpc.Code;
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
      pool.main.workers = 2
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
}
