"""What does a pickle call when it is loaded?

Every function that ``safepickle.dumps`` writes a call to is here, and nothing else: a module a kind of object, a module
a library. They are small, check the types of their arguments, never call what a name resolves to, and take no nested
pickle. They are a file format: a function is never renamed and its arguments never change their meaning
(``tests/golden`` keeps files of every release). Libraries are imported inside the functions.
"""

from __future__ import annotations

from .classes import begin_class as begin_class
from .classes import enum_member as enum_member
from .classes import fill_class as fill_class
from .classes import make_class as make_class
from .classes import make_enum as make_enum
from .classes import make_named_tuple as make_named_tuple
from .classes import make_new_type as make_new_type
from .classes import make_type_alias as make_type_alias
from .classes import make_type_variable as make_type_variable
from .classes import mark_complete as mark_complete
from .compiled import COMPILED as COMPILED
from .compiled import compiled as compiled
from .compiled import fill_jax_custom_derivative as fill_jax_custom_derivative
from .compiled import jax_custom_derivative as jax_custom_derivative
from .compiled import jax_jit as jax_jit
from .exceptions import fill_exception as fill_exception
from .exceptions import fill_exception_origin as fill_exception_origin
from .exceptions import make_error as make_error
from .exceptions import make_exception as make_exception
from .files import closed_file as closed_file
from .files import fill_codecs_stream as fill_codecs_stream
from .files import make_buffered_file as make_buffered_file
from .files import make_text_file as make_text_file
from .files import open_compressed_file as open_compressed_file
from .files import open_raw_file as open_raw_file
from .files import standard_stream as standard_stream
from .functions import Lines as Lines
from .functions import fill_cell as fill_cell
from .functions import fill_function as fill_function
from .functions import make_cell as make_cell
from .functions import make_code as make_code
from .functions import make_function as make_function
from .functions import make_namespace as make_namespace
from .functions import module_namespace as module_namespace
from .functions import register_source as register_source
from .functions import renamed as renamed
from .functions import source_file as source_file
from .functions import texts as texts
from .h5py import h5py_file as h5py_file
from .h5py import h5py_object as h5py_object
from .identities import Identities as Identities
from .identities import identities as identities
from .keras import fill_keras_container as fill_keras_container
from .keras import fill_keras_node as fill_keras_node
from .keras import fill_keras_object as fill_keras_object
from .keras import fill_keras_tensor as fill_keras_tensor
from .keras import fill_keras_tracker as fill_keras_tracker
from .keras import keras_container as keras_container
from .keras import keras_node as keras_node
from .keras import keras_object as keras_object
from .keras import keras_tensor as keras_tensor
from .keras import keras_tracker as keras_tracker
from .names import bind_method as bind_method
from .names import bound_classmethod as bound_classmethod
from .names import builtin_type as builtin_type
from .names import class_attribute as class_attribute
from .names import fill_module as fill_module
from .names import function as function
from .names import make_module as make_module
from .names import module_attribute as module_attribute
from .names import resolve as resolve
from .names import same_module as same_module
from .names import sentinel as sentinel
from .names import source_digest as source_digest
from .names import stand_in as stand_in
from .names import submodule as submodule
from .stdlib import builtin_descriptor as builtin_descriptor
from .stdlib import class_namespace as class_namespace
from .stdlib import context_variable as context_variable
from .stdlib import fill_context as fill_context
from .stdlib import fill_dispatcher as fill_dispatcher
from .stdlib import fill_simple_queue as fill_simple_queue
from .stdlib import fill_weak_mapping as fill_weak_mapping
from .stdlib import fill_weak_set as fill_weak_set
from .stdlib import function_cache as function_cache
from .stdlib import initialize as initialize
from .stdlib import make_context_variable as make_context_variable
from .stdlib import make_dispatcher as make_dispatcher
from .stdlib import make_finalizer as make_finalizer
from .stdlib import make_function_cache as make_function_cache
from .stdlib import make_local as make_local
from .stdlib import make_match as make_match
from .stdlib import make_memoryview as make_memoryview
from .stdlib import make_property as make_property
from .stdlib import make_simple_queue as make_simple_queue
from .stdlib import make_static_or_class_method as make_static_or_class_method
from .stdlib import make_view as make_view
from .stdlib import make_weak_method as make_weak_method
from .stdlib import make_weak_proxy as make_weak_proxy
from .stdlib import make_weak_reference as make_weak_reference
from .stdlib import released_memoryview as released_memoryview
from .stdlib import remember_context_variable as remember_context_variable
from .stdlib import set_attributes as set_attributes
from .tensorflow import InstanceFunctions as InstanceFunctions
from .tensorflow import fill_tf_function as fill_tf_function
from .tensorflow import pinned_tf_function as pinned_tf_function
from .tensorflow import tf_concrete_function as tf_concrete_function
from .tensorflow import tf_context as tf_context
from .tensorflow import tf_dataset as tf_dataset
from .tensorflow import tf_default_strategy as tf_default_strategy
from .tensorflow import tf_function as tf_function
from .tensorflow import tf_function_by_name as tf_function_by_name
from .tensorflow import tf_method as tf_method
from .tensorflow import tf_static_table as tf_static_table
from .tensorflow import tf_table as tf_table
from .tensorflow import tf_tensor as tf_tensor
from .tensorflow import tf_variable as tf_variable
from .torch import TORCH_ADOPT_FROM as TORCH_ADOPT_FROM
from .torch import fill_torch_optimizer as fill_torch_optimizer
from .torch import fill_torch_parametrized as fill_torch_parametrized
from .torch import fill_torch_quantized as fill_torch_quantized
from .torch import fill_torch_tensor as fill_torch_tensor
from .torch import fill_torch_weak_keys as fill_torch_weak_keys
from .torch import torch_event as torch_event
from .torch import torch_generator as torch_generator
from .torch import torch_library as torch_library
from .torch import torch_mkldnn as torch_mkldnn
from .torch import torch_parameter as torch_parameter
from .torch import torch_parametrized as torch_parametrized
from .torch import torch_process_group as torch_process_group
from .torch import torch_storage as torch_storage
from .torch import torch_stream as torch_stream
from .torch import torch_tensor as torch_tensor
from .torch import torch_typed_storage as torch_typed_storage
from .torch import torch_uninitialized as torch_uninitialized
from .torch import torch_weak_keys as torch_weak_keys
from .torch import torch_wrapped_kernel as torch_wrapped_kernel
from .torch import torch_wrapped_kernel_named as torch_wrapped_kernel_named
from .torch_code import TORCH_FX_NODES as TORCH_FX_NODES
from .torch_code import TORCH_FX_ROOT as TORCH_FX_ROOT
from .torch_code import fill_torch_exported_program as fill_torch_exported_program
from .torch_code import fill_torch_fx_graph as fill_torch_fx_graph
from .torch_code import fill_torch_graph_module as fill_torch_graph_module
from .torch_code import fill_torch_module as fill_torch_module
from .torch_code import fill_torch_optimized_module as fill_torch_optimized_module
from .torch_code import fill_torch_script_module as fill_torch_script_module
from .torch_code import torch_compile as torch_compile
from .torch_code import torch_compiled as torch_compiled
from .torch_code import torch_compiler as torch_compiler
from .torch_code import torch_config_patch as torch_config_patch
from .torch_code import torch_custom_op as torch_custom_op
from .torch_code import torch_custom_op_named as torch_custom_op_named
from .torch_code import torch_disable as torch_disable
from .torch_code import torch_exported_program as torch_exported_program
from .torch_code import torch_fake_mode as torch_fake_mode
from .torch_code import torch_fake_tensor as torch_fake_tensor
from .torch_code import torch_fx_graph as torch_fx_graph
from .torch_code import torch_fx_node as torch_fx_node
from .torch_code import torch_graph_module as torch_graph_module
from .torch_code import torch_higher_order_operator as torch_higher_order_operator
from .torch_code import torch_namespace as torch_namespace
from .torch_code import torch_operator as torch_operator
from .torch_code import torch_run_compiled as torch_run_compiled
from .torch_code import torch_script_function as torch_script_function
from .torch_code import torch_script_function_named as torch_script_function_named
from .torch_code import torch_script_method as torch_script_method
from .torch_code import torch_script_module as torch_script_module
from .torch_code import torch_traced_function as torch_traced_function
from .torch_code import torch_triton_op as torch_triton_op
from .triton import constexpr as constexpr
from .triton import fill_config as fill_config
from .triton import fill_kernel as fill_kernel
from .triton import kernel as kernel
from .triton import kernel_method as kernel_method
from .triton import launcher as launcher
from .triton import make_config as make_config
from .triton import make_kernel as make_kernel
from .triton import pinned_kernel as pinned_kernel
from .workers import install_in_worker as install_in_worker
from .workers import raise_error as raise_error

__all__ = [
    "begin_class",
    "bind_method",
    "bound_classmethod",
    "builtin_descriptor",
    "builtin_type",
    "class_attribute",
    "class_namespace",
    "closed_file",
    "context_variable",
    "enum_member",
    "fill_cell",
    "fill_class",
    "fill_codecs_stream",
    "fill_config",
    "fill_context",
    "fill_dispatcher",
    "fill_exception",
    "fill_exception_origin",
    "fill_function",
    "fill_keras_container",
    "fill_keras_node",
    "fill_keras_object",
    "fill_keras_tensor",
    "fill_keras_tracker",
    "fill_kernel",
    "fill_module",
    "fill_simple_queue",
    "fill_tf_function",
    "fill_torch_exported_program",
    "fill_torch_fx_graph",
    "fill_torch_graph_module",
    "fill_torch_module",
    "fill_torch_optimized_module",
    "fill_torch_optimizer",
    "fill_torch_parametrized",
    "fill_torch_quantized",
    "fill_torch_script_module",
    "fill_torch_tensor",
    "fill_torch_weak_keys",
    "fill_weak_mapping",
    "fill_weak_set",
    "function",
    "function_cache",
    "h5py_file",
    "h5py_object",
    "initialize",
    "install_in_worker",
    "keras_container",
    "keras_node",
    "keras_object",
    "keras_tensor",
    "keras_tracker",
    "launcher",
    "make_buffered_file",
    "make_cell",
    "make_class",
    "make_code",
    "make_config",
    "make_context_variable",
    "make_dispatcher",
    "make_enum",
    "make_error",
    "make_exception",
    "make_finalizer",
    "make_function",
    "make_function_cache",
    "make_kernel",
    "make_local",
    "make_match",
    "make_memoryview",
    "make_module",
    "make_named_tuple",
    "make_namespace",
    "make_new_type",
    "make_property",
    "make_simple_queue",
    "make_static_or_class_method",
    "make_text_file",
    "make_type_alias",
    "make_type_variable",
    "make_view",
    "make_weak_method",
    "make_weak_proxy",
    "make_weak_reference",
    "module_attribute",
    "module_namespace",
    "open_compressed_file",
    "open_raw_file",
    "raise_error",
    "released_memoryview",
    "same_module",
    "sentinel",
    "standard_stream",
    "submodule",
    "tf_concrete_function",
    "tf_context",
    "tf_dataset",
    "tf_default_strategy",
    "tf_function",
    "tf_function_by_name",
    "tf_method",
    "tf_static_table",
    "tf_table",
    "tf_tensor",
    "tf_variable",
    "torch_compile",
    "torch_compiled",
    "torch_compiler",
    "torch_config_patch",
    "torch_custom_op",
    "torch_custom_op_named",
    "torch_disable",
    "torch_event",
    "torch_exported_program",
    "torch_fake_mode",
    "torch_fake_tensor",
    "torch_fx_graph",
    "torch_fx_node",
    "torch_generator",
    "torch_graph_module",
    "torch_higher_order_operator",
    "torch_library",
    "torch_mkldnn",
    "torch_namespace",
    "torch_operator",
    "torch_parameter",
    "torch_parametrized",
    "torch_process_group",
    "torch_run_compiled",
    "torch_script_function",
    "torch_script_function_named",
    "torch_script_method",
    "torch_script_module",
    "torch_storage",
    "torch_stream",
    "torch_tensor",
    "torch_traced_function",
    "torch_triton_op",
    "torch_typed_storage",
    "torch_uninitialized",
    "torch_weak_keys",
    "torch_wrapped_kernel",
    "torch_wrapped_kernel_named",
]

# A pickle names these functions as members of this package, whatever module of it they are written in: modules may be
# arranged anew, the format may not.
for _value in list(globals().values()):
    if getattr(_value, "__module__", "").startswith(f"{__name__}."):
        _value.__module__ = __name__
