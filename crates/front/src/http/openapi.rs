//! `/openapi.json`: made from the annotations of the handlers, so that it cannot name a path that
//! does not exist.

use super::api::Problem;
use super::routes as r;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, OpenApi};

#[derive(OpenApi)]
#[openapi(
    info(title = "Rekindle", description = "Volumes of a Rekindle node.", license(name = "Apache-2.0 OR MIT")),
    paths(
        r::healthz, r::metrics, r::openapi, r::status, r::volumes, r::create_volume, r::volume, r::remove_volume,
        r::drain_volume, r::move_volume, r::pin_volume, r::unpin_volume, r::history, r::salvages, r::all_salvages, r::salvage_history,
        r::start_salvage, r::cancel_salvage, r::debug, r::log_usage, r::store, r::boot, r::warm, r::drop_warm_frames,
        r::sweep, r::start_sweep, r::start_sweep_plan, r::dismiss_node, r::cluster, r::recoveries, r::init_cluster, r::rotate_key,
        r::drain_node, r::take_over, r::remove_node, r::adopt_folder,
        r::start_space, r::start_verify, r::start_attach, r::jobs, r::job, r::cancel_job, r::shutdown, r::stopping,
        r::kept::rename_volume, r::kept::resize_volume, r::kept::set_volume, r::kept::versions, r::kept::rollback_volume,
        r::kept::snapshots, r::kept::take_snapshot, r::kept::remove_snapshot, r::kept::clone_volume, r::kept::trash,
        r::kept::restore_volume, r::kept::purge_volume, r::mount::mount_volume
    ),
    components(schemas(Problem)),
    modifiers(&Problems)
)]
struct Document;

/// The modifier that adds a [`Problem`] as a possible answer of every operation.
struct Problems;

impl Modify for Problems {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let schema = Ref::from_schema_name("Problem");
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let response = ResponseBuilder::new()
            .description("An error: what to do about it, and the words for people.")
            .content("application/problem+json", content)
            .build();
        for item in document.paths.paths.values_mut() {
            for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten()
            {
                operation.responses.responses.insert("default".into(), RefOr::T(response.clone()));
            }
        }
    }
}

/// Returns the OpenAPI document of the API.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}
