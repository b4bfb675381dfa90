package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.job;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.Code;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import io.grpc.Metadata;
import io.grpc.StatusException;
import io.grpc.stub.MetadataUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

class RequestIdTest {
  private static final Metadata.Key<String> REQUEST_ID =
      Metadata.Key.of("x-request-id", Metadata.ASCII_STRING_MARSHALLER);
  private static final String UUID7 = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}";

  /** A stub whose calls carry a request id. */
  static WorkerPoolServiceBlockingV2Stub named(WorkerPoolServiceBlockingV2Stub client, String id) {
    var headers = new Metadata();
    headers.put(REQUEST_ID, id);
    return client.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
  }

  private static List<String> ids(Metadata metadata) {
    var ids = new ArrayList<String>();
    var all = metadata.getAll(REQUEST_ID);
    if (all != null) {
      all.forEach(ids::add);
    }
    return ids;
  }

  /** The id in the headers of an answer. */
  private static String echoed(WorkerPoolServiceBlockingV2Stub client) throws StatusException {
    var headers = new AtomicReference<Metadata>();
    var capture = MetadataUtils.newCaptureMetadataInterceptor(headers, new AtomicReference<>());
    submit(client.withInterceptors(capture), "echo", "");
    var ids = ids(headers.get());
    assertEquals(1, ids.size());
    return ids.get(0);
  }

  @Test
  void ownComesBackInTheHeadersOfAResult() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      var client = server.client();
      for (var id : List.of("order-4711", "x".repeat(128))) {
        assertEquals(id, echoed(named(client, id)));
      }
    }
  }

  @Test
  void ownComesBackInTheTrailersOfAnError() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      var client = server.client();
      var refused = failure(() -> submit(named(client, "refused"), "nosuch", ""));
      check(refused, Code.INVALID_ARGUMENT, "UNKNOWN_KIND");
      assertEquals(List.of("refused"), ids(refused.getTrailers()));
      var failed = failure(() -> submit(named(client, "failed"), "sleep", "gibberish"));
      check(failed, Code.INVALID_ARGUMENT, "HANDLER_FAILED");
      assertEquals(List.of("failed"), ids(failed.getTrailers()));
    }
  }

  @Test
  void ownComesBackInTheTrailersOfAStreamThatFails() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      var client = named(server.client(), "half-way");
      var error = failure(() -> StreamTest.read(client, job("sleep", "gibberish"), new ArrayList<>()));
      check(error, Code.INVALID_ARGUMENT, "HANDLER_FAILED");
      assertEquals(List.of("half-way"), ids(error.getTrailers()));
    }
  }

  @Test
  void missingOrUnsoundIsReplacedByAUuidOfVersion7() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      var client = server.client();
      var first = echoed(client);
      assertTrue(first.matches(UUID7), first);
      assertNotEquals(first, echoed(client));
      for (var id : List.of("x".repeat(129), "two words")) {
        var made = echoed(named(client, id));
        assertTrue(made.matches(UUID7), made);
      }
    }
  }
}
