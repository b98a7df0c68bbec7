//! Calls a broker directly, without the client under test.

use std::time::Duration;

use howdah_client::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::dynamic;

/// Pause between two repetitions of a call.
const PAUSE: Duration = Duration::from_millis(40);

/// Repeats a gRPC call until `wanted` accepts its responses. After the timeout, returns the reason of the last failure.
pub(crate) async fn until(
    address: &str,
    method: &str,
    request: &Value,
    within: Duration,
    wanted: impl Fn(&Value) -> Result<(), String>,
) -> Result<Value, String> {
    let client = Client::connect(address).await.map_err(|error| error.to_string())?;
    let deadline = Instant::now() + within;
    loop {
        let answer = dynamic::call(client.connection(), method, request).await;
        let answer = answer.map(Value::Array).map_err(|status| format!("{method}: {status}"));
        let why = match answer {
            Ok(answer) => match wanted(&answer) {
                Ok(()) => return Ok(answer),
                Err(why) => format!("{why}; the last answer was {}", crate::pattern::short(&json!(answer))),
            },
            Err(why) => why,
        };
        if Instant::now() >= deadline {
            return Err(why);
        }
        sleep(PAUSE).await;
    }
}
