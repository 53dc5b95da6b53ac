"""Private names that `tfdist/compat` uses of objects, by its files, with the object that each must be found in."""

import ctypes
import functools
import importlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended
from tensorflow.python.eager import context

from tests import private_names
from tests.private_objects import (
    adam,
    array_adapter,
    attention,
    callback,
    device_queues,
    elements,
    embedding,
    epoch_iterator,
    layer,
    masked,
    model,
    node,
    node_of_own_gradient,
    optimizer,
)
from tfdist.compat.keras import callback_fields

#: a name of the file's own, in a class that derives from one of TensorFlow's or Keras'
OURS = None
MIRRORED = (
    "_call_for_each_replica _container_strategy _create_variable _get_variable_creator_initial_value "
    "_replica_ctx_all_reduce"
)
EXTENDED = (
    "_container_strategy _get_replica_id_in_sync_group _get_local_replica_id _devices "
    "_in_multi_worker_mode _get_variable_creator_initial_value _replica_ctx_all_reduce _reduce_to _batch_reduce_to "
    "_gather_to_implementation _experimental_distribute_dataset _distribute_datasets_from_function "
    "_experimental_distribute_values_from_function _input_workers_with_options _num_replicas_in_sync"
)


def each(names: str, owner: Callable[[], Any] | None) -> dict[str, Callable[[], Any] | None]:
    return dict.fromkeys(names.split(), owner)


ATTENTION = (
    *("_compute_attention", "_dot_product_equation", "_dropout_layer", "_gate_dense", "_key_dense", "_output_dense"),
    *("_query_dense", "_value_dense"),
)
# file -> name -> what it must be found in
NAMES: dict[str, dict[str, Callable[[], Any] | None]] = {
    # of modules alone
    **{
        f"{name}.py": {}
        for name in ("dry_run", "horovod/horovod_ops", "keras/keras_frames", "keras/first_batch", "version_pairs")
    },
    **{f"tensorflow/{name}.py": {} for name in ("coordination_service", "sparse_sums", "steps/static_packs")},
    "horovod/broken_connections.py": {"_ZSt13set_terminatePFvvE": lambda: ctypes.CDLL("libstdc++.so.6")},
    "keras/callback_fields.py": {
        **{
            name: functools.partial(callback, name)
            for names in callback_fields._FIELDS.values()
            for name in names
            if private_names.is_private(name)
        },
        "_get_file_path": lambda: keras.callbacks.ModelCheckpoint,
        "_set_monitor_op": lambda: keras.callbacks.EarlyStopping,
        **each("_save_model _weights_path", lambda: keras.callbacks.BackupAndRestore),
        **each("_tf_swap_variables _tf_finalize_ema_values", lambda: keras.callbacks.SwapEMAWeights),
    },
    "keras/keras_distributions.py": {"_layout_map": lambda: keras.distribution.ModelParallel},
    "keras/epochs.py": {
        **each("_current_iterator _distributed_dataset _enumerate_iterator _get_iterator", epoch_iterator),
        **each("_num_batches _steps_seen", epoch_iterator),
        "_dataset": lambda: epoch_iterator().data_adapter,
        "_get_metrics_result_or_logs": lambda: keras.Model,
    },
    "keras/replayed_input.py": {
        **each("_enumerate_iterator _get_iterator _num_batches _steps_seen", epoch_iterator),
        "_inputs": array_adapter,
        "_eval_epoch_iterator": lambda: keras.Model,
    },
    "keras/symbolic/graphs.py": {
        "_functional": model,
        **each("_nodes_by_depth _outputs_struct _standardize_inputs", lambda: model()._functional),
    },
    "keras/symbolic/known_outputs.py": each(
        "_compile_loss _compile_metrics _compute_loss _flatten_layers _post_build _symbolic_build", model
    ),
    "keras/symbolic/tensor_attributes.py": {"_keras_mask": masked},
    "keras/symbolic/nested_models.py": {
        "_inputs_struct": lambda: model()._functional,
        **each("_graph _has_mask", OURS),
    },
    "keras/layer_methods.py": {
        **each(" ".join(ATTENTION), attention),
        **each("_moments _reduction_axes", layer),
        "_embeddings": embedding,
        **each("_kernel _metrics _seed_generators", lambda: model().layers[0]),
        **each("_output_mode _output_sequence_length _ragged", lambda: vars(keras.layers.TextVectorization())),
    },
    "keras/loss.py": {
        "_flat_losses": lambda: model()._compile_loss,
        "_fn_kwargs": lambda: keras.losses.CosineSimilarity(axis=0),
        "_keras_logits": lambda: keras.activations.softmax(tf.zeros([1, 2])),
    },
    "keras/metrics/metric_resets.py": each("_compile_metrics _initial_epoch", model),
    "keras/metrics/metric_weights.py": each("_fn _fn_kwargs", lambda: keras.metrics.MeanMetricWrapper(tf.add)),
    "keras/keras_trainer.py": {
        **each(
            "_compile_config _compile_loss _compile_metrics _distribute_strategy _flatten_layers _initial_epoch", model
        ),
        "_loss_tracker": model,
        "_losses": layer,
        **each("_get_metrics_result_or_logs _make_function _maybe_symbolic_build _symbolic_build", model),
        **each("_distributed_dataset _num_batches", epoch_iterator),
        "_dataset": lambda: epoch_iterator().data_adapter,
        "_flat_losses": lambda: model()._compile_loss,
        "_metrics": lambda: keras.metrics.Mean(),
    },
    "keras/optimizer.py": {
        **each("_all_reduce_sum_gradients _distribution_strategy _exclude_from_weight_decay", optimizer),
        **each("_exclude_from_weight_decay_pattern _get_current_learning_rate _get_variable_index", optimizer),
        **each("_backend_apply_gradients _clip_gradients _distributed_tf_update_step", optimizer),
        **each("_learning_rate _overwrite_model_variables_with_average_value _track_variable", optimizer),
        **each("_trainable_variables _trainable_variables_indices _var_key", optimizer),
        "_model_variables_moving_average": lambda: keras.optimizers.Optimizer,
        "_var_to_optimizer_idx": lambda: keras.optimizers.MultiOptimizer,
    },
    "keras/called_updates.py": {
        **each("_get_variable_index _iterations", optimizer),
        **each("_momentums _velocities _velocity_hats", adam),
        "_call_flat": lambda: tf.function(tf.add).get_concrete_function(1.0, 1.0),
    },
    "keras/fused_updates.py": {"_get_variable_index": optimizer},
    "keras/sharded_optimizer.py": {
        **each("_all_reduce_sum_gradients _apply_weight_decay _backend_apply_gradients", optimizer),
        **each("_backend_update_step _clip_gradients _distributed_tf_update_step _iterations", optimizer),
        **each("_learning_rate _overwrite_model_variables_with_average_value _trainable_variables", optimizer),
        **each("_trackable_children _update_model_variables_moving_average _use_weight_decay _var_key", optimizer),
        "_model_variables_moving_average": lambda: keras.optimizers.Optimizer,
    },
    "keras/stateless_scope.py": {
        "_embeddings": embedding,
        **each("_changed_by _follow _followed _updating _weights", OURS),
    },
    "keras/keras_variables.py": {
        **each("_initialize_with_initializer _value", lambda: keras.Variable([1.0])),
        **each("_non_trainable_variables _seed_generators", layer),
    },
    "random_states.py": {"_rng": lambda: context.Context},
    "tensorflow/steps/custom_gradients.py": {"_gradient_op_type": lambda: dict.fromkeys(node_of_own_gradient())},
    "tensorflow/tensor_arrays.py": {"_numpy": lambda: tf.constant(1.0)},
    "initialized.py": {"_context_handle": context.context},
    "tensorflow/tf_data.py": {
        **each("_functions _inputs _variant_tensor _options_attr", lambda: tf.data.Dataset.range(2)),
        **each("_dataset _element_spec _flat_output_shapes _flat_output_types _iterator_resource", elements),
        "_MapDataset": lambda: importlib.import_module("tensorflow.python.data.ops.map_op"),
        "_ParallelMapDataset": lambda: importlib.import_module("tensorflow.python.data.ops.map_op"),
        "_PrefetchDataset": lambda: importlib.import_module("tensorflow.python.data.ops.prefetch_op"),
        "_OptionsDataset": lambda: importlib.import_module("tensorflow.python.data.ops.dataset_ops"),
        **each("_cardinality _find _iterated _made _make _taken", OURS),
    },
    "tensorflow/device_batches.py": {
        **each("_device_iterators _type_spec", device_queues),
        **each(
            "_flat_output_shapes _flat_output_types _iterator_resource", lambda: device_queues()._device_iterators[0]
        ),
        **each("_component_specs _from_components _serialize _to_components", lambda: tf.TypeSpec),
        **each("_at _devices _division _error _find _shards _taken", OURS),
    },
    "tensorflow/meshes/mesh_replicas.py": {
        **each("_container_strategy _create_variable _get_variable_creator_initial_value", lambda: MirroredExtended),
        **each("_update _validate_colocate_with_variable", lambda: MirroredExtended),
        "_call_for_each_replica": lambda: MirroredExtended,
        **each("_devices _num_replicas_in_sync _replica_ctx_all_reduce", lambda: MirroredExtended),
        **each("_get_local_replica_id _get_replica_id_in_sync_group", lambda: MirroredExtended),
        "_experimental_distribute_dataset": lambda: MirroredExtended,
        **each("_examples _late", OURS),
    },
    "tensorflow/meshes/staged.py": {
        **each("_container_strategy _create_variable", lambda: MirroredExtended),
        **each("_is_weight _Part _make _made _staged _distribute_strategy _dtype _is_settled _kwargs _variables", OURS),
        **each("_changed _in_stage _shards_slots_of", OURS),
    },
    "tensorflow/meshes/graph_rewrites.py": each("_add_control_inputs _update_input", lambda: tf.Operation),
    "tensorflow/meshes/weight_gathering.py": {
        "_update_input": lambda: tf.Operation,
        "_get_on_device_or_primary": lambda: model().weights[0].value,
    },
    "tensorflow/meshes/sharded_variable.py": {
        **each("_constraint _shape _value", lambda: keras.Variable([1.0])),
        **each("_get_on_device_or_primary _shared_name _unique_id", lambda: model().weights[0].value),
        **each("_distribute_strategy _restore_from_tensors _serialize_to_tensors", lambda: model().weights[0].value),
        "_changed": OURS,
    },
    "tensorflow/new_variables.py": {
        **each("_dtype _shape", lambda: keras.Variable([1.0])),
        "_handle_data": lambda: tf.Variable(1.0).handle,
        "_unique_id": lambda: tf.Variable(1.0),
    },
    "tensorflow/partitioned.py": {
        "_value": lambda: keras.Variable([1.0]),
        **each("_distribute_strategy _shared_name _unique_id", lambda: model().weights[0].value),
        **each("_changed _keras_variables", OURS),
    },
    "tensorflow/replay.py": {"_class": node},
    "tensorflow/ring_extended.py": {
        **each(EXTENDED, lambda: MirroredExtended),
        "_replica_id": lambda: tf.distribute.ReplicaContext,
        **each("_collective _everybody _from_first_replica _input_context _local_sums _task_id", OURS),
        **each("_rows_apart _rows_of_first _sum_of_local _sums_of_several _waiting", OURS),
    },
    "tensorflow/sparse_rows.py": {**each("_create_op_internal _get_function", lambda: tf.Graph), "_mask": OURS},
    "tensorflow/servers.py": {
        **each("_call_for_each_replica _container_strategy _create_variable _local_results", lambda: OneDeviceExtended),
        **each("_update _use_merge_call _validate_colocate_with_variable", lambda: OneDeviceExtended),
        "_distribute_strategy": lambda: type(tf.Variable(1.0)),
        "_server_def": lambda: context.Context,
        **each("_bind _bound _place", OURS),
    },
    "tensorflow/mirrored_extended.py": {
        **each(MIRRORED, lambda: MirroredExtended),
        **each("_collective_ops _cross_device_ops _get_cross_device_ops _use_merge_call", lambda: MirroredExtended),
        **each("_in_multi_worker_mode _num_replicas_in_sync", lambda: MirroredExtended),
        "_get_replica_id_in_sync_group": lambda: MirroredExtended,
        **each("_communication_options _enable_check_health", lambda: CollectiveAllReduceExtended),
        **each("_initialize_local_devices _std_server_started", lambda: CollectiveAllReduceExtended),
        "_collective_key_base": lambda: tf.distribute.MirroredStrategy,
        "_collective_ops_server_def": lambda: context.Context,
        "_distribute_strategy": lambda: type(tf.Variable(1.0)),
        "_get_default_strategy": lambda: distribute_lib,
        **each("_replica_id _replica_id_in_sync_group", lambda: tf.distribute.ReplicaContext),
        **each("_packed_sums _replicas_per_worker _rows_apart", OURS),
    },
    "tensorflow/steps/traced_call.py": {
        "_call_flat": lambda: tf.function(tf.add).get_concrete_function(1.0, 1.0),
        **each("_concrete _function", OURS),
    },
    "tensorflow/steps/gradient_uses.py": {"_get_function": lambda: tf.Graph},
    "tensorflow/steps/replica_contexts.py": {
        **each("_get_default_replica_context _get_default_strategy", lambda: distribute_lib),
        "_local_replica_id": tf.distribute.get_replica_context,
        "_variable_creator_stack": tf.compat.v1.get_default_graph,
    },
    "planted.py": {},
    "tensorflow/steps/replica_services.py": {},
    "tensorflow/steps/row_decisions.py": {},
    "tensorflow/whole_variable.py": {},
    "tensorflow/traced_uses.py": {
        "experimental_acd_manager": lambda: tf.Graph,
        "_get_on_device_or_primary": lambda: model().weights[0].value,
    },
}
