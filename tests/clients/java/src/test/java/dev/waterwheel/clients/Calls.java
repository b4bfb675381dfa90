package dev.waterwheel.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.fail;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.Code;
import com.google.rpc.ErrorInfo;
import com.google.rpc.Status;
import dev.waterwheel.v1.Job;
import dev.waterwheel.v1.PoolStats;
import dev.waterwheel.v1.RejectedCount;
import dev.waterwheel.v1.StatsRequest;
import dev.waterwheel.v1.SubmitRequest;
import dev.waterwheel.v1.SubmitResponse;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import io.grpc.Metadata;
import io.grpc.StatusException;
import io.grpc.protobuf.StatusProto;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.function.Executable;

/** What the tests do again and again. */
final class Calls {
  static final Metadata.Key<String> PUSHBACK =
      Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);

  private Calls() {}

  static Job job(String kind, String payload) {
    return Job.newBuilder().setKind(kind).setPayload(ByteString.copyFromUtf8(payload)).build();
  }

  static SubmitRequest submission(String kind, String payload) {
    return SubmitRequest.newBuilder().setJob(job(kind, payload)).build();
  }

  /** The stub with a deadline that a call should not need. */
  static WorkerPoolServiceBlockingV2Stub patient(WorkerPoolServiceBlockingV2Stub client) {
    return client.withDeadlineAfter(Server.PATIENCE_SECONDS, TimeUnit.SECONDS);
  }

  static SubmitResponse submit(WorkerPoolServiceBlockingV2Stub client, String kind, String payload)
      throws StatusException {
    return patient(client).submit(submission(kind, payload));
  }

  /** Submits on another thread. */
  static FutureTask<SubmitResponse> background(WorkerPoolServiceBlockingV2Stub client, String kind, String payload) {
    return background(() -> submit(client, kind, payload));
  }

  static <T> FutureTask<T> background(Callable<T> call) {
    var task = new FutureTask<>(call);
    var thread = new Thread(task);
    thread.setDaemon(true);
    thread.start();
    return task;
  }

  /** What a call in the background returned. */
  static <T> T await(FutureTask<T> call) throws Exception {
    return call.get(Server.PATIENCE_SECONDS, TimeUnit.SECONDS);
  }

  /** How a call in the background failed. */
  static StatusException awaitFailure(FutureTask<?> call) {
    return (StatusException) assertThrows(ExecutionException.class, () -> await(call)).getCause();
  }

  static StatusException failure(Executable call) {
    return assertThrows(StatusException.class, call);
  }

  static <T extends Message> Optional<T> detail(Status status, Class<T> type) throws InvalidProtocolBufferException {
    for (var any : status.getDetailsList()) {
      if (any.is(type)) {
        return Optional.of(any.unpack(type));
      }
    }
    return Optional.empty();
  }

  static <T extends Message> Optional<T> detail(StatusException error, Class<T> type)
      throws InvalidProtocolBufferException {
    return detail(StatusProto.fromThrowable(error), type);
  }

  /** The ErrorInfo of an error that must have the code and the reason. */
  static ErrorInfo check(StatusException error, Code code, String reason) throws InvalidProtocolBufferException {
    return check(StatusProto.fromThrowable(error), code, reason);
  }

  static ErrorInfo check(Status status, Code code, String reason) throws InvalidProtocolBufferException {
    var info = detail(status, ErrorInfo.class).orElseGet(() -> fail("no ErrorInfo: " + status));
    assertEquals(code.getNumber() + "/" + reason, status.getCode() + "/" + info.getReason(), status.toString());
    assertEquals("waterwheel.dev", info.getDomain());
    return info;
  }

  /** What the trailers say of retries: milliseconds, negative for none. */
  static long pushback(StatusException error) {
    assertNotNull(error.getTrailers(), error.toString());
    var pushback = error.getTrailers().get(PUSHBACK);
    assertNotNull(pushback, error.toString());
    return Long.parseLong(pushback);
  }

  /** The figures of one pool. */
  static PoolStats pool(WorkerPoolServiceBlockingV2Stub client, String name) throws StatusException {
    return patient(client).stats(StatsRequest.newBuilder().setPool(name).build()).getStats().getPools(0);
  }

  /** How often a pool refused jobs for one reason. */
  static long rejected(PoolStats stats, String reason) {
    var counts = stats.getJobs().getRejectedList().stream().filter(count -> count.getReason().equals(reason));
    return counts.mapToLong(RejectedCount::getCount).sum();
  }

  /** Polls until the condition holds, and says how many milliseconds that took. */
  static long eventually(String what, Callable<Boolean> condition) throws Exception {
    var begin = System.nanoTime();
    while (!condition.call()) {
      if (System.nanoTime() - begin > TimeUnit.SECONDS.toNanos(Server.PATIENCE_SECONDS)) {
        fail("waited in vain: " + what);
      }
      Thread.sleep(2);
    }
    return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin);
  }

  static void untilRunning(WorkerPoolServiceBlockingV2Stub client, String pool, int jobs) throws Exception {
    eventually(jobs + " jobs run", () -> pool(client, pool).getInFlight() == jobs);
  }

  static void untilQueued(WorkerPoolServiceBlockingV2Stub client, String pool, int jobs) throws Exception {
    eventually(jobs + " jobs are queued", () -> pool(client, pool).getQueue().getJobs() == jobs);
  }
}
