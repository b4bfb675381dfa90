package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.job;
import static dev.waterwheel.clients.Calls.pool;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.rpc.Code;
import dev.waterwheel.v1.Job;
import dev.waterwheel.v1.StreamRequest;
import dev.waterwheel.v1.StreamResponse;
import dev.waterwheel.v1.SubmitManyRequest;
import dev.waterwheel.v1.SubmitManyResponse;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.zip.GZIPInputStream;
import org.junit.jupiter.api.Test;

class JobsTest {
  /** Reads a stream to its end. */
  static void read(WorkerPoolServiceBlockingV2Stub client, Job job, List<StreamResponse> events) throws Exception {
    var call = Calls.patient(client).stream(StreamRequest.newBuilder().setJob(job).build());
    for (var event = call.read(); event != null; event = call.read()) {
      events.add(event);
    }
  }

  @Test
  void streamOfGzipGunzipsToTheSameBytes() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      var payload = new byte[3 << 20];
      new Random(7).nextBytes(payload);
      var events = new ArrayList<StreamResponse>();
      read(server.client(), Job.newBuilder().setKind("gzip").setPayload(ByteString.copyFrom(payload)).build(), events);

      var packed = new ByteArrayOutputStream();
      var chunks = 0;
      for (var i = 0; i < events.size(); i++) {
        var event = events.get(i);
        assertEquals(i + 1, event.getSequence());
        assertEquals(i == 0, event.hasStarted());
        assertEquals(i == events.size() - 1, event.hasFinished());
        if (event.hasOutputChunk()) {
          event.getOutputChunk().getData().writeTo(packed);
          chunks++;
        }
      }
      assertTrue(chunks >= 10, chunks + " chunks");
      var started = events.get(0).getStarted();
      var finished = events.get(events.size() - 1).getFinished();
      assertFalse(started.getJobId().isEmpty());
      assertEquals(started.getJobId(), finished.getJobId());
      assertEquals(started.getWorker(), finished.getWaterfall().getWorker());
      assertEquals(packed.size(), finished.getOutputBytes());
      assertEquals("application/gzip", finished.getContentType());
      var unpacked = new GZIPInputStream(new ByteArrayInputStream(packed.toByteArray())).readAllBytes();
      assertArrayEquals(payload, unpacked);
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
      var error = failure(() -> read(server.client(), job("nap", "60000"), events));
      var info = check(error, Code.DEADLINE_EXCEEDED, "RUN_TIMEOUT");
      assertEquals(events.get(0).getStarted().getJobId(), info.getMetadataOrThrow("job"));
    }
  }

  static SubmitManyRequest request(String tag, Job job) {
    return SubmitManyRequest.newBuilder().setTag(tag).setJob(job).build();
  }

  /** Sends all requests while it reads, and returns the ends by tag. */
  private static Map<String, SubmitManyResponse> submitMany(
      WorkerPoolServiceBlockingV2Stub client, List<SubmitManyRequest> requests) throws Exception {
    var call = Calls.patient(client).submitMany();
    var sender =
        background(
            () -> {
              for (var request : requests) {
                call.write(request);
              }
              call.halfClose();
              return null;
            });
    var ends = new HashMap<String, SubmitManyResponse>();
    for (var end = call.read(); end != null; end = call.read()) {
      assertNull(ends.put(end.getTag(), end), "answered twice: " + end.getTag());
    }
    Calls.await(sender);
    return ends;
  }

  @Test
  void submitManyAnswersEachOf500JobsOnceAndRefusesNone() throws Exception {
    try (var server = Server.start(Server.TINY)) {
      var client = server.client();
      var requests = new ArrayList<SubmitManyRequest>();
      var expected = new HashMap<String, String>();
      for (var i = 0; i < 500; i++) {
        // A few take their time, so that the pool is full.
        var slow = i % 100 == 0;
        requests.add(request("job-" + i, slow ? job("sleep", "50") : job("echo", "of job-" + i)));
        expected.put("job-" + i, slow ? "slept 50 ms" : "of job-" + i);
      }
      var outputs = new HashMap<String, String>();
      submitMany(client, requests).forEach((tag, end) -> outputs.put(tag, end.getResult().getOutput().toStringUtf8()));
      assertEquals(expected, outputs);
      var jobs = pool(client, "tiny").getJobs();
      assertEquals(500, jobs.getCompleted());
      assertEquals(List.of(), jobs.getRejectedList());
    }
  }
}
