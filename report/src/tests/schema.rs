//! The JSON Schema that `docs/report.schema.json` publishes is that of the model, and reports keep to it. Set
//! `DARC_BLESS=1` to write what the model says.

use serde_json::Value;

use super::golden::{finished, handed_over, running};
use crate::fixture;
use crate::model::Report;

fn published() -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/report.schema.json");
    let mut schema = serde_json::to_value(schemars::schema_for!(Report)).unwrap();
    schema["title"] = "Results of darc, schema 1".into();
    if std::env::var_os("DARC_BLESS").is_some() {
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        std::fs::write(&path, text).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let published: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(published, schema, "docs/report.schema.json is out of date");
    published
}

#[test]
fn reports_keep_to_the_published_schema() {
    let schema = jsonschema::validator_for(&published()).unwrap();
    for report in [
        fixture::report(0),
        fixture::report(200),
        finished(),
        handed_over(),
        running(),
    ] {
        let json = serde_json::to_value(&report).unwrap();
        let errors: Vec<String> = schema.iter_errors(&json).map(|e| e.to_string()).collect();
        assert_eq!(errors, [""; 0]);
    }
    let mut damaged = serde_json::to_value(finished()).unwrap();
    damaged["peaks"][0]["status"] = "no such status".into();
    assert!(!schema.is_valid(&damaged));
}
