//! Detached jobs beside one that ends its workers.

use waterwheel::proto::{
    CreateJobRequest, DetachedJob, JobState, WaitJobRequest, job_service_client::JobServiceClient,
};

use super::{Worker, serve, workers};
use crate::service::{Caller, job};

#[tokio::test]
async fn a_detached_job_that_ends_its_workers_takes_no_other_one_with_it() {
    let service = serve("    store.memory = true\n");
    let caller = Caller::of(service.public).await;
    let mut jobs = JobServiceClient::new(service.public.channel().await);
    for name in ["poison", "beside"] {
        let job = Some(job("far", name));
        jobs.create_job(CreateJobRequest { job, job_id: name.into(), ..CreateJobRequest::default() }).await.unwrap();
    }
    // The third loss in a row makes a job a dead letter. Before it, each job runs alone.
    for _ in 0..3 {
        let mut worker = Worker::attach(&service, 2).await;
        caller.until(|pool| pool.in_flight == 2).await;
        assert_eq!(worker.run().await.payload, "poison");
        drop(worker);
        workers(&caller, 0).await;
    }
    let mut worker = Worker::attach(&service, 2).await;
    let run = worker.run().await;
    assert_eq!(run.payload, "beside");
    worker.done(&run.id, "it is done").await;
    let mut ended = async |name: &str| {
        let job = jobs.wait_job(WaitJobRequest { job_id: name.into() }).await.unwrap().into_inner().job.unwrap();
        let DetachedJob { attempts, .. } = &job;
        (job.state(), attempts.iter().map(|attempt| attempt.outcome.clone()).collect::<Vec<_>>())
    };
    assert_eq!(ended("poison").await, (JobState::Failed, vec!["WORKER_LOST".to_owned(); 3]));
    let (state, outcomes) = ended("beside").await;
    assert_eq!((state, outcomes.last().map(String::as_str)), (JobState::Succeeded, Some("COMPLETED")));
}
