// A worker that attaches to servers from anywhere, and runs their jobs of the kind `thumbnail`. tests/clients/java/pom.xml
// makes the stubs and compiles it:
//
//     mvn -f tests/clients/java/pom.xml compile exec:java -Dexec.mainClass=Worker -Dexec.args="127.0.0.1:7070 [ADDRESS...]"
//
// Load what is slow to load (a model, a connection) in main, once. It is kept from job to job.

import com.google.protobuf.ByteString;
import dev.waterwheel.v1.AttachRequest;
import dev.waterwheel.v1.AttachResponse;
import dev.waterwheel.v1.WorkerServiceGrpc;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

public final class Worker {
  /** Jobs at once from each server. */
  static final int CONCURRENCY = 4;

  /** Most bytes of one message: a server takes no more than its largest payload. */
  static final int PIECE = 1 << 20;

  /** Does one job. */
  static Result run(Job job) throws Exception {
    return new Result(job.run.getPayload(), job.run.getContentType());
  }

  /** What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it. */
  static Result conformance(Job job) throws Exception {
    switch (job.run.getLabelsOrDefault("task", "")) {
      case "chunks" -> {
        for (int number = 0; number < 3; number++) job.output(ByteString.copyFromUtf8(number + "\n"));
        return new Result(ByteString.copyFromUtf8("end\n"), "text/plain");
      }
      case "progress" -> job.progress(0.5, "half of it");
      case "fail" -> throw new Failed("NOT_FOUND", "no such picture", null);
      case "wait" -> throw new Failed("CANCELLED", "stopped because of " + job.cancelled.get(), null);
      case "print" -> System.out.println("a line on standard output");
      case "crash" -> Runtime.getRuntime().halt(3);
      default -> {}
    }
    return run(job);
  }

  static final Map<String, Handler> KINDS = Map.of("thumbnail", Worker::run, "conformance", Worker::conformance);

  interface Handler {
    Result run(Job job) throws Exception;
  }

  record Result(ByteString data, String contentType) {}

  /** Ends a job with a gRPC status code. Any other exception ends it with INTERNAL. */
  static final class Failed extends Exception {
    final String code;
    final Boolean retryable; // null: as the code says

    Failed(String code, String message, Boolean retryable) {
      super(message);
      this.code = code;
      this.retryable = retryable;
    }
  }

  static final class Job {
    final AttachResponse.Run run;
    /** Why the job is to stop, as soon as it is. */
    final CompletableFuture<String> cancelled = new CompletableFuture<>();

    private final Attachment attachment;
    /** Pieces of output that may be sent before the server has taken one. */
    private final Semaphore room = new Semaphore(4);

    Job(AttachResponse.Run run, Attachment attachment) {
      this.run = run;
      this.attachment = attachment;
    }

    /** Sends a piece of the result now, which a caller of `Stream` gets as a chunk. It waits for a slow caller. */
    void output(ByteString piece) throws Exception {
      room.acquire();
      var output = AttachRequest.Output.newBuilder().setId(run.getId()).setData(piece);
      attachment.say(AttachRequest.newBuilder().setOutput(output));
    }

    void progress(double fraction, String message) throws Exception {
      var progress = AttachRequest.Progress.newBuilder().setId(run.getId()).setFraction(fraction).setMessage(message);
      attachment.say(AttachRequest.newBuilder().setProgress(progress));
    }

    void cancel(String reason) {
      cancelled.complete(reason);
      room.release(1000);
    }

    private AttachRequest.Builder answer() {
      try {
        var handler = KINDS.get(run.getKind());
        if (handler == null) throw new Failed("UNIMPLEMENTED", "no handler for the kind " + run.getKind(), null);
        var result = handler.run(this);
        var data = result.data;
        for (; data.size() > PIECE; data = data.substring(PIECE)) output(data.substring(0, PIECE));
        var done = AttachRequest.Done.newBuilder().setId(run.getId()).setData(data);
        return AttachRequest.newBuilder().setDone(done.setContentType(result.contentType));
      } catch (Throwable error) {
        if (!(error instanceof Failed)) error.printStackTrace();
        var said = error instanceof Failed failed ? failed : new Failed("INTERNAL", error.toString(), null);
        var failed = AttachRequest.Failed.newBuilder().setId(run.getId()).setCode(said.code);
        var text = String.valueOf(said.getMessage());
        failed.setMessage(text.substring(0, Math.min(text.length(), 1000)));
        if (said.retryable != null) failed.setRetryable(said.retryable);
        return AttachRequest.newBuilder().setFailed(failed);
      }
    }
  }

  /** One call of Attach, on which several jobs answer. */
  static final class Attachment {
    private final BlockingClientCall<AttachRequest, AttachResponse> call;
    private final Map<String, Job> jobs = new ConcurrentHashMap<>();
    /** Whether another loop has taken over. */
    private boolean isFollowed;

    Attachment(BlockingClientCall<AttachRequest, AttachResponse> call) {
      this.call = call;
    }

    /** Waits while the server does not read. Does nothing after the end of the call. */
    synchronized void say(AttachRequest.Builder message) throws InterruptedException {
      try {
        call.write(message.build());
      } catch (StatusException ended) {
        // The reader of the call tells of it.
      }
    }

    /** Runs jobs until the call ends. */
    void follow(Runnable successor, ExecutorService threads) throws Exception {
      try {
        for (var response = call.read(); response != null; response = call.read()) {
          if (response.hasRun()) {
            var job = new Job(response.getRun(), this);
            jobs.put(job.run.getId(), job);
            threads.submit(() -> serve(job));
          } else if (response.hasCancel()) {
            var job = jobs.get(response.getCancel().getId());
            if (job != null) job.cancel(response.getCancel().getReason());
          } else if (response.hasTaken()) {
            var job = jobs.get(response.getTaken().getId());
            if (job != null) job.room.release();
          } else if (response.getLeave().getIdle()) {
            // Nobody needs this worker. The exit waits for this thread.
            new Thread(() -> System.exit(0)).start();
          } else if (response.hasLeave() && !isFollowed) {
            // The jobs of this call may take long: the free slots attach again at once.
            isFollowed = true;
            successor.run();
          }
        }
      } finally {
        // No caller waits for these any more.
        jobs.values().forEach(job -> job.cancel("DETACHED"));
      }
    }

    private Void serve(Job job) throws InterruptedException {
      var answer = job.answer();
      jobs.remove(job.run.getId());
      say(answer);
      return null;
    }
  }

  /** Open until the worker is to leave. */
  private static final CountDownLatch STAYS = new CountDownLatch(1);

  private static final Set<Attachment> ATTACHMENTS = new HashSet<>();

  private static final List<Thread> LOOPS = new CopyOnWriteArrayList<>();

  /** Attaches to one server, and runs its jobs until the call ends. Returns whether another loop has taken over. */
  private static boolean attach(String address, ExecutorService threads) throws Exception {
    // The keepalive finds a server that is gone, and payloads may be larger than gRPC's default of 4 MiB.
    var builder = Grpc.newChannelBuilder(address, InsecureChannelCredentials.create());
    builder.keepAliveTime(10, TimeUnit.SECONDS).keepAliveTimeout(10, TimeUnit.SECONDS);
    var channel = builder.maxInboundMessageSize(Integer.MAX_VALUE).build();
    var attachment = new Attachment(WorkerServiceGrpc.newBlockingV2Stub(channel).attach());
    try {
      var hello = AttachRequest.Hello.newBuilder().setName("thumbnail").addAllKinds(KINDS.keySet());
      attachment.say(AttachRequest.newBuilder().setHello(hello.setConcurrency(CONCURRENCY)));
      synchronized (ATTACHMENTS) {
        if (STAYS.getCount() == 0) return true;
        ATTACHMENTS.add(attachment);
      }
      attachment.follow(() -> startLoop(address, threads), threads);
    } catch (StatusException error) {
      System.err.println(address + ": " + error.getMessage());
    } finally {
      synchronized (ATTACHMENTS) {
        ATTACHMENTS.remove(attachment);
      }
      channel.shutdownNow();
    }
    return attachment.isFollowed;
  }

  private static void startLoop(String address, ExecutorService threads) {
    var loop = new Thread(() -> stayAttached(address, threads));
    LOOPS.add(loop);
    loop.start();
  }

  /** Attaches again whenever the call ends: the server restarts, or the network breaks. */
  private static void stayAttached(String address, ExecutorService threads) {
    try {
      do {
        if (attach(address, threads)) return;
      } while (!STAYS.await(ThreadLocalRandom.current().nextInt(100, 1000), TimeUnit.MILLISECONDS));
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  /** Takes no more jobs, and ends once those that run are answered. */
  private static void leave() {
    try {
      synchronized (ATTACHMENTS) {
        STAYS.countDown();
        for (var attachment : ATTACHMENTS)
          attachment.say(AttachRequest.newBuilder().setLeaving(AttachRequest.Leaving.getDefaultInstance()));
      }
      for (var loop : LOOPS) loop.join();
      // A process that a signal ends does not exit with 0 by itself.
      Runtime.getRuntime().halt(0);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  public static void main(String... args) {
    var addresses = args.length > 0 ? args : System.getenv("WATERWHEEL_ADDRESS").split(",");
    var threads = Executors.newCachedThreadPool();
    Runtime.getRuntime().addShutdownHook(new Thread(Worker::leave));
    for (var address : addresses) startLoop(address, threads);
  }
}
