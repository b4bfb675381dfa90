package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.background;
import static dev.waterwheel.clients.Calls.job;
import static dev.waterwheel.clients.Calls.pool;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import dev.waterwheel.v1.Job;
import dev.waterwheel.v1.SubmitManyRequest;
import dev.waterwheel.v1.SubmitManyResponse;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class SubmitManyTest {
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
  void answersEachOf500JobsOnceAndRefusesNone() throws Exception {
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
