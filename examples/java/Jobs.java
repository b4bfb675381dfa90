// Creates a detached job, watches it, waits for it; cancels another one, and runs that again. tests/clients/java/pom.xml makes
// the stubs and compiles it:
//
//     mvn -f tests/clients/java/pom.xml compile exec:java -Dexec.mainClass=Jobs -Dexec.args="127.0.0.1:7070"

import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import dev.waterwheel.v1.CreateJobRequest;
import dev.waterwheel.v1.CreateJobResponse;
import dev.waterwheel.v1.DetachedJob;
import dev.waterwheel.v1.Job;
import dev.waterwheel.v1.JobOptions;
import dev.waterwheel.v1.JobServiceCancelJobRequest;
import dev.waterwheel.v1.JobServiceGrpc;
import dev.waterwheel.v1.JobServiceGrpc.JobServiceBlockingV2Stub;
import dev.waterwheel.v1.JobState;
import dev.waterwheel.v1.RetryJobRequest;
import dev.waterwheel.v1.WaitJobRequest;
import dev.waterwheel.v1.WatchJobRequest;
import dev.waterwheel.v1.WatchJobResponse;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Status.Code;
import io.grpc.StatusException;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

public final class Jobs {
  /** Creates a job. The same id is the same job: after a failure, it sends it again. */
  static CreateJobResponse create(JobServiceBlockingV2Stub jobs, CreateJobRequest request) throws Exception {
    for (; ; Thread.sleep(200)) {
      try {
        return jobs.withDeadlineAfter(5, TimeUnit.SECONDS).createJob(request);
      } catch (StatusException error) {
        var code = error.getStatus().getCode();
        if (code != Code.UNAVAILABLE && code != Code.DEADLINE_EXCEEDED) throw error;
      }
    }
  }

  /** Tells the events of a job to its end, over broken connections. */
  static void watch(JobServiceBlockingV2Stub jobs, String id, Consumer<WatchJobResponse> tell) throws Exception {
    for (var sequence = 0L; ; Thread.sleep(200)) {
      try {
        var request = WatchJobRequest.newBuilder().setJobId(id).setFromSequence(sequence).build();
        var events = jobs.watchJob(request);
        for (var event = events.read(); event != null; event = events.read()) {
          sequence = event.getSequence();
          tell.accept(event);
        }
        return;
      } catch (StatusException error) {
        if (error.getStatus().getCode() != Code.UNAVAILABLE) throw error;
      }
    }
  }

  /** The job at its end. A call waits for as long as the server lets it. */
  static DetachedJob wait(JobServiceBlockingV2Stub jobs, String id) throws Exception {
    while (true) {
      var job = jobs.waitJob(WaitJobRequest.newBuilder().setJobId(id).build()).getJob();
      if (job.getState().getNumber() >= JobState.JOB_STATE_SUCCEEDED_VALUE) return job;
    }
  }

  public static void main(String... args) throws Exception {
    var channel = Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create()).build();
    var jobs = JobServiceGrpc.newBlockingV2Stub(channel);
    var work = Job.newBuilder().setKind("sleep").setPayload(ByteString.copyFromUtf8("300"));
    var request = CreateJobRequest.newBuilder().setJob(work).setJobId("report-" + UUID.randomUUID()).build();
    create(jobs, request);
    System.out.println("created " + request.getJobId() + " " + create(jobs, request).getAlreadyExisted());
    watch(jobs, request.getJobId(), event -> System.out.println("event " + event.getSequence() + " " + event.getEventCase()));
    var job = wait(jobs, request.getJobId());
    System.out.println("waited " + job.getState() + " " + job.getOutput().toStringUtf8());

    var hour = JobOptions.newBuilder().setDelay(Duration.newBuilder().setSeconds(3600));
    var later = CreateJobRequest.newBuilder().setJob(work).setJobId("later-" + UUID.randomUUID()).setOptions(hour).build();
    create(jobs, later);
    var cancel = JobServiceCancelJobRequest.newBuilder().setJobId(later.getJobId()).build();
    System.out.println("cancelled " + jobs.withDeadlineAfter(5, TimeUnit.SECONDS).cancelJob(cancel).getState());
    var retry = RetryJobRequest.newBuilder().setJobId(later.getJobId()).build();
    jobs.withDeadlineAfter(5, TimeUnit.SECONDS).retryJob(retry);
    System.out.println("retried " + wait(jobs, later.getJobId()).getState());
    channel.shutdownNow();
  }
}
