package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.job;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.rpc.Code;
import dev.waterwheel.v1.Job;
import dev.waterwheel.v1.StreamRequest;
import dev.waterwheel.v1.StreamResponse;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.zip.GZIPInputStream;
import org.junit.jupiter.api.Test;

class StreamTest {
  /** Reads a stream to its end. */
  static void read(WorkerPoolServiceBlockingV2Stub client, Job job, List<StreamResponse> events) throws Exception {
    var call = Calls.patient(client).stream(StreamRequest.newBuilder().setJob(job).build());
    for (var event = call.read(); event != null; event = call.read()) {
      events.add(event);
    }
  }

  @Test
  void gzipGunzipsToTheSameBytes() throws Exception {
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
  void thatFailsEndsWithAStatusAfterItsEvents() throws Exception {
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
}
