package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import dev.waterwheel.v1.Job;
import dev.waterwheel.v1.SubmitRequest;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class SubmitTest {
  /** A payload that is no text. */
  private static byte[] bytesOfAllValues(int length) {
    var payload = new byte[length];
    for (var i = 0; i < length; i++) {
      payload[i] = (byte) i;
    }
    return payload;
  }

  @Test
  void returnsTheBytesTheirTypeAndWhereTheBudgetWent() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      var payload = ByteString.copyFrom(bytesOfAllValues(100_000));
      var job = Job.newBuilder().setKind("echo").setPayload(payload).setContentType("image/png");
      var client = server.client().withDeadlineAfter(10, TimeUnit.SECONDS);
      var result = client.submit(SubmitRequest.newBuilder().setJob(job).build()).getResult();
      assertEquals(payload, result.getOutput());
      assertEquals("image/png", result.getContentType());
      assertTrue(!result.getJobId().isEmpty());

      var waterfall = result.getWaterfall();
      var budget = waterfall.getBudgetSeconds();
      var spent = waterfall.getQueueSeconds() + waterfall.getRunSeconds();
      var left = waterfall.getLeftSeconds();
      assertTrue(budget > 5 && budget <= 10, waterfall.toString());
      assertTrue(spent > 0 && left > 0 && spent + left <= budget + 1e-6, waterfall.toString());
    }
  }
}
