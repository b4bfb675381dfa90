package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.failure;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.grpc.Channel;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.health.v1.HealthGrpc.HealthBlockingV2Stub;
import io.grpc.stub.BlockingClientCall;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;

class HealthTest {
  private static HealthBlockingV2Stub stub(Channel channel) {
    return HealthGrpc.newBlockingV2Stub(channel).withDeadlineAfter(Server.PATIENCE_SECONDS, TimeUnit.SECONDS);
  }

  private static HealthCheckRequest request(String name) {
    return HealthCheckRequest.newBuilder().setService(name).build();
  }

  /** Asks once. */
  static ServingStatus healthOf(Channel channel, String name) throws StatusException {
    return stub(channel).check(request(name)).getStatus();
  }

  /** Statuses as they come. */
  record Watch(BlockingClientCall<?, HealthCheckResponse> call) implements AutoCloseable {
    static Watch of(Channel channel, String name) {
      return new Watch(stub(channel).watch(request(name)));
    }

    /** The next status; a failure where the watch ended. */
    ServingStatus next() throws Exception {
      return call.read(Server.PATIENCE_SECONDS, TimeUnit.SECONDS).getStatus();
    }

    /** Fails if the watch says anything, or ends, for a while. */
    void isSilent() {
      assertThrows(TimeoutException.class, () -> call.read(600, TimeUnit.MILLISECONDS));
    }

    @Override
    public void close() {
      call.cancel("enough", null);
    }
  }

  @Test
  void unknownNameIsNotFoundAndItsWatchStaysOpen() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      var channel = server.connect();
      for (var name : List.of("nosuch", "pool/nosuch")) {
        var error = failure(() -> healthOf(channel, name));
        assertEquals(Status.Code.NOT_FOUND, error.getStatus().getCode());
        try (var watch = Watch.of(channel, name)) {
          assertEquals(ServingStatus.SERVICE_UNKNOWN, watch.next());
          watch.isSilent();
        }
      }
    }
  }
}
