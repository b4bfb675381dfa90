package dev.waterwheel.clients;

import static dev.waterwheel.clients.Calls.check;
import static dev.waterwheel.clients.Calls.detail;
import static dev.waterwheel.clients.Calls.failure;
import static dev.waterwheel.clients.Calls.pool;
import static dev.waterwheel.clients.Calls.pushback;
import static dev.waterwheel.clients.Calls.submission;
import static dev.waterwheel.clients.Calls.submit;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.Code;
import com.google.rpc.ErrorInfo;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class DeadlineTest {
  @Test
  void exceededArrivesWithItsDetailsBeforeTheOwnTimer() throws Exception {
    try (var server = Server.start(Server.IMPATIENT)) {
      var client = server.client();
      pool(client, "one"); // connects
      var told = 0;
      for (var i = 0; i < 10; i++) {
        var timed = client.withDeadlineAfter(600, TimeUnit.MILLISECONDS);
        var error = failure(() -> timed.submit(submission("sleep", "60000")));
        // The client's own timer knows no details.
        if (detail(error, ErrorInfo.class).isEmpty()) {
          System.out.println("the own timer was first: " + error);
          continue;
        }
        var info = check(error, Code.DEADLINE_EXCEEDED, "RUN_TIMEOUT");
        assertEquals("STARTED", info.getMetadataOrThrow("execution"));
        assertEquals("sleep", info.getMetadataOrThrow("kind"));
        assertEquals("one", info.getMetadataOrThrow("pool"));
        assertTrue(Double.parseDouble(info.getMetadataOrThrow("run_ms")) > 300, info.toString());
        assertEquals(-1, pushback(error));
        told++;
      }
      assertTrue(told >= 9, told + " of 10 calls were told why they ended");
    }
  }
}
