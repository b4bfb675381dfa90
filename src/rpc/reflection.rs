//! Server reflection. For an unknown symbol, it answers with an error and continues the stream.

use std::sync::{Arc, LazyLock};

use futures_util::StreamExt;
use prost::Message;
use prost_reflect::{DescriptorPool, FileDescriptor};
use tonic::{Code, Request, Response, Status, Streaming, async_trait};
use tonic_reflection::pb::{
    v1::{
        self, ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
        ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
        server_reflection_request::MessageRequest as Asked, server_reflection_response::MessageResponse as Answer,
        server_reflection_server::ServerReflection,
    },
    v1alpha,
};

use super::{service_state::ResponseStream, status};

/// All messages and services, and the types of error details.
pub(super) static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut pool = DescriptorPool::new();
    for set in [
        crate::proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_types::pb::FILE_DESCRIPTOR_SET,
        v1::FILE_DESCRIPTOR_SET,
        v1alpha::FILE_DESCRIPTOR_SET,
    ] {
        pool.decode_file_descriptor_set(set).expect("the build made valid descriptors");
    }
    pool
});

/// Reflection of one listener.
#[derive(Debug, Clone)]
pub(super) struct Reflection(Arc<[ServiceResponse]>);

impl Reflection {
    /// Lists the services with these names.
    pub(super) fn new(names: &[&str]) -> Self {
        Self(names.iter().map(|name| ServiceResponse { name: (*name).to_owned() }).collect())
    }

    fn answer(&self, request: ServerReflectionRequest) -> ServerReflectionResponse {
        let answer = match &request.message_request {
            Some(Asked::FileByFilename(name)) => DESCRIPTORS.get_file_by_name(name).map(file),
            Some(Asked::FileContainingSymbol(symbol)) => file_of(symbol).map(file),
            // No message has extensions.
            Some(Asked::FileContainingExtension(_)) => None,
            Some(Asked::AllExtensionNumbersOfType(name)) => DESCRIPTORS.get_message_by_name(name).map(|message| {
                Answer::AllExtensionNumbersResponse(ExtensionNumberResponse {
                    base_type_name: message.full_name().to_owned(),
                    extension_number: Vec::new(),
                })
            }),
            Some(Asked::ListServices(_)) => {
                Some(Answer::ListServicesResponse(ListServiceResponse { service: self.0.to_vec() }))
            }
            None => Some(error(Code::InvalidArgument, "the request asks for nothing")),
        };
        let answer = answer.unwrap_or_else(|| error(Code::NotFound, "the server has no symbol of this name"));
        let valid_host = request.host.clone();
        ServerReflectionResponse { valid_host, original_request: Some(request), message_response: Some(answer) }
    }
}

fn error(code: Code, message: &str) -> Answer {
    Answer::ErrorResponse(ErrorResponse { error_code: code.into(), error_message: message.to_owned() })
}

fn file(file: FileDescriptor) -> Answer {
    let file = file.file_descriptor_proto().encode_to_vec();
    Answer::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto: vec![file] })
}

/// The file with the message, enum, service, or part of one, that has this name.
fn file_of(symbol: &str) -> Option<FileDescriptor> {
    file_of_type(symbol).or_else(|| {
        let (parent, part) = symbol.rsplit_once('.')?;
        file_of_type(parent).filter(|_| is_part(parent, part))
    })
}

/// The file of a message, an enum or a service.
fn file_of_type(name: &str) -> Option<FileDescriptor> {
    let pool = &*DESCRIPTORS;
    let message = pool.get_message_by_name(name).map(|message| message.parent_file());
    let message_or_enum = message.or_else(|| pool.get_enum_by_name(name).map(|known| known.parent_file()));
    message_or_enum.or_else(|| pool.get_service_by_name(name).map(|service| service.parent_file()))
}

/// Whether `part` is a field, a oneof, a value or a method of `parent`.
fn is_part(parent: &str, part: &str) -> bool {
    let pool = &*DESCRIPTORS;
    let of_message = pool.get_message_by_name(parent).is_some_and(|message| {
        message.get_field_by_name(part).is_some() || message.oneofs().any(|oneof| oneof.name() == part)
    });
    let of_enum = || pool.get_enum_by_name(parent).is_some_and(|known| known.get_value_by_name(part).is_some());
    let of_service = || {
        let service = pool.get_service_by_name(parent);
        service.is_some_and(|service| service.methods().any(|method| method.name() == part))
    };
    of_message || of_enum() || of_service()
}

#[async_trait]
impl ServerReflection for Reflection {
    type ServerReflectionInfoStream = ResponseStream<ServerReflectionResponse>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let reflection = self.clone();
        let answers = request.into_inner().map(move |asked| {
            let answer = asked.map(|asked| reflection.answer(asked));
            answer.map_err(status::refused_by_codec)
        });
        Ok(Response::new(Box::pin(answers)))
    }
}
