package dev.waterwheel.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonParser;
import java.lang.ProcessBuilder.Redirect;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** The example of a worker that attaches keeps the protocol, and runs the jobs of a server. */
class WorkerTest {
  private static final String FAR =
      """
      [pool.far]
      when_full = "wait"
      [kind.thumbnail]
      pool = "far"
      remote = true
      """;

  private static final List<String> WORKER = List.of(
      ProcessHandle.current().info().command().orElseThrow(), "-cp", System.getProperty("java.class.path"), "Worker");

  @Test
  void theWorkerKeepsTheProtocol() throws Exception {
    var command = new ArrayList<>(List.of(Server.BINARY, "worker", "test", "--attach", "--output", "json", "--"));
    command.addAll(WORKER);
    var kit = new ProcessBuilder(command).redirectError(Redirect.INHERIT).start();
    var rows = kit.inputReader().lines().toList();
    assertEquals(16, rows.size(), rows.toString());
    for (var row : rows) {
      assertEquals("pass", JsonParser.parseString(row).getAsJsonObject().get("verdict").getAsString(), row);
    }
    assertEquals(0, kit.waitFor());
  }

  @Test
  void theWorkerRunsTheJobsOfAServer() throws Exception {
    try (var server = Server.start(FAR)) {
      var client = server.client();
      // It waits for the worker, which is still to attach.
      var early = Calls.background(client, "thumbnail", "early");
      var builder = new ProcessBuilder(WORKER).redirectError(Redirect.INHERIT);
      builder.environment().put("WATERWHEEL_ADDRESS", server.address);
      var worker = builder.start();
      try {
        assertEquals("early", Calls.await(early).getResult().getOutput().toStringUtf8());
        assertEquals(4, Calls.pool(client, "far").getSize().getWorkers());
        worker.destroy();
        assertTrue(worker.waitFor(Server.PATIENCE_SECONDS, TimeUnit.SECONDS), "the worker does not end");
        assertEquals(0, worker.exitValue());
        Calls.eventually("its slots are gone", () -> Calls.pool(client, "far").getSize().getWorkers() == 0);
      } finally {
        worker.destroyForcibly();
      }
    }
  }
}
