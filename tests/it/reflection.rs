//! Both versions of gRPC reflection.

use prost::Message;
use prost_types::FileDescriptorProto;
use tonic::Streaming;
use tonic_reflection::pb::{
    v1::{
        ServerReflectionRequest, ServerReflectionResponse, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    },
    v1alpha::server_reflection_client::ServerReflectionClient as AlphaClient,
};

use crate::process::Process;

const CONFIG: &str = "pool.one.workers = 1\nkind.echo = { pool = \"one\", builtin = \"echo\" }\n";

fn reflect(message_request: Option<MessageRequest>) -> ServerReflectionRequest {
    ServerReflectionRequest { host: "here".into(), message_request }
}

/// The name of the file in a response, or the code of its error.
fn answered(answer: &ServerReflectionResponse) -> Result<String, i32> {
    assert_eq!(answer.valid_host, "here");
    match answer.message_response.as_ref().expect("an answer") {
        MessageResponse::FileDescriptorResponse(files) => {
            let file = FileDescriptorProto::decode(&files.file_descriptor_proto[0][..]).unwrap();
            Ok(file.name().to_owned())
        }
        MessageResponse::ErrorResponse(error) => Err(error.error_code),
        MessageResponse::AllExtensionNumbersResponse(numbers) => Ok(numbers.base_type_name.clone()),
        MessageResponse::ListServicesResponse(list) => Ok(list.service.len().to_string()),
    }
}

async fn answers(process: &Process, requests: Vec<ServerReflectionRequest>) -> Streaming<ServerReflectionResponse> {
    let mut client = ServerReflectionClient::new(process.public.channel().await);
    client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner()
}

#[tokio::test]
async fn an_unknown_name_is_answered_with_an_error_and_the_stream_stays_open() {
    let process = Process::serve(CONFIG).await;
    let symbol = |name: &str| MessageRequest::FileContainingSymbol(name.into());
    let file = |name: &str| MessageRequest::FileByFilename(name.into());
    let numbers = |name: &str| MessageRequest::AllExtensionNumbersOfType(name.into());
    let extension = tonic_reflection::pb::v1::ExtensionRequest {
        containing_type: "waterwheel.v1.Job".into(),
        extension_number: 1000,
    };
    let service = "waterwheel/v1/worker_pool_service.proto";
    let job = "waterwheel/v1/job.proto";
    let details = "error_details.proto";
    let cases = [
        (symbol("waterwheel.v1.Nothing"), Err(5)),
        (symbol("waterwheel.v1.WorkerPoolService"), Ok(service)),
        (symbol("waterwheel.v1.WorkerPoolService.Submit"), Ok(service)),
        (symbol("waterwheel.v1.WorkerPoolService.Nothing"), Err(5)),
        (symbol("waterwheel.v1.Job"), Ok(job)),
        (symbol("waterwheel.v1.Job.kind"), Ok(job)),
        (symbol("waterwheel.v1.Job.nothing"), Err(5)),
        (symbol("waterwheel.v1.Criticality"), Ok(job)),
        (symbol("waterwheel.v1.Criticality.CRITICALITY_CRITICAL"), Ok(job)),
        (symbol(""), Err(5)),
        (symbol("."), Err(5)),
        // Messages in the details of errors.
        (symbol("google.rpc.Status"), Ok("status.proto")),
        (symbol("google.rpc.ErrorInfo"), Ok(details)),
        (symbol("google.rpc.BadRequest.FieldViolation"), Ok(details)),
        (symbol("google.rpc.RetryInfo"), Ok(details)),
        (symbol("grpc.health.v1.Health.Watch"), Ok("health.proto")),
        (file("google/protobuf/duration.proto"), Ok("google/protobuf/duration.proto")),
        (file("nothing.proto"), Err(5)),
        (numbers("waterwheel.v1.Job"), Ok("waterwheel.v1.Job")),
        (numbers("waterwheel.v1.Nothing"), Err(5)),
        (MessageRequest::FileContainingExtension(extension), Err(5)),
        (MessageRequest::ListServices(String::new()), Ok("7")),
    ];
    let requests = cases.iter().map(|(request, _)| reflect(Some(request.clone())));
    let mut answers = answers(&process, requests.chain([reflect(None)]).collect()).await;
    for (request, expected) in &cases {
        let answer = answers.message().await.unwrap().expect("an answer to each request");
        assert_eq!(answer.original_request, Some(reflect(Some(request.clone()))));
        assert_eq!(answered(&answer), expected.map(str::to_owned), "{request:?}");
    }
    assert_eq!(answered(&answers.message().await.unwrap().unwrap()), Err(3), "the answer to an empty request");
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn version_v1alpha_gives_the_same_answers() {
    use tonic_reflection::pb::v1alpha;
    let process = Process::serve(CONFIG).await;
    let symbols = ["waterwheel.v1.Nothing", "google.rpc.ErrorInfo"].map(str::to_owned);
    let requests = symbols.map(|symbol| v1alpha::ServerReflectionRequest {
        host: "here".into(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol)),
    });
    let mut client = AlphaClient::new(process.public.channel().await);
    let mut answers = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner();
    for expected in [Err(5), Ok("error_details.proto".to_owned())] {
        let answer = answers.message().await.unwrap().expect("an answer to each request").encode_to_vec();
        assert_eq!(answered(&ServerReflectionResponse::decode(&answer[..]).unwrap()), expected);
    }
}
