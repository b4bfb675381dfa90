//! Tenants, which show tokens.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp, jwk::Jwk};
use rcgen::KeyPair;
use serde_json::json;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};
use waterwheel::proto::{job_service_client::JobServiceClient, worker_pool_service_client::WorkerPoolServiceClient};

use crate::{Failure, child::Server};

/// The RPCs that both tenants may call.
pub(crate) const RPCS: [&str; 12] = [
    "Submit",
    "CreateJob",
    "CreateJobs",
    "GetJob",
    "JobService.ListJobs",
    "WaitJob",
    "WatchJob",
    "JobService.CancelJob",
    "RetryJob",
    "DeleteJob",
    "PurgeJobs",
    "Stats",
];

/// Signs tokens.
pub(crate) struct Issuer(KeyPair);

/// A tenant of a server.
#[derive(Clone)]
pub(crate) struct Tenant {
    endpoint: Endpoint,
    token: Token,
}

/// Adds the token to each call.
#[derive(Clone)]
pub(crate) struct Token(MetadataValue<Ascii>);

pub(crate) type Calls = InterceptedService<Channel, Token>;

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

impl Issuer {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self(KeyPair::generate()?))
    }

    fn private(&self) -> EncodingKey {
        EncodingKey::from_ec_der(self.0.serialized_der())
    }

    /// The key set for the server.
    pub(crate) fn keys(&self) -> Result<String, Failure> {
        Ok(json!({ "keys": [Jwk::from_encoding_key(&self.private(), Algorithm::ES256)?] }).to_string())
    }

    pub(crate) fn tenant(&self, name: &str, server: &Server) -> Result<Tenant, Failure> {
        let claims = json!({
            "iss": "bench", "aud": "waterwheel", "sub": name, "exp": get_current_timestamp() + 86_400,
        });
        let token = encode(&Header::new(Algorithm::ES256), &claims, &self.private())?;
        Ok(Tenant {
            endpoint: Endpoint::from_shared(format!("http://{}", server.address))?,
            token: Token(format!("Bearer {token}").parse()?),
        })
    }
}

impl Tenant {
    /// The header of its calls.
    pub(crate) fn authorization(&self) -> String {
        self.token.0.to_str().unwrap_or_default().to_owned()
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Calls, Failure> {
        Ok(InterceptedService::new(self.endpoint.connect().await?, self.token.clone()))
    }

    pub(crate) async fn jobs(&self) -> Result<JobServiceClient<Calls>, Failure> {
        Ok(JobServiceClient::new(self.connect().await?))
    }

    pub(crate) async fn pool(&self) -> Result<WorkerPoolServiceClient<Calls>, Failure> {
        Ok(WorkerPoolServiceClient::new(self.connect().await?))
    }
}
