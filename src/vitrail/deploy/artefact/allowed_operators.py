"""The operators that a graph may have: those that exports of vitrail have, and others that only compute tensors.

None of them reads files or memory that it was not given (so no `empty`), repeats without end, or trusts a layout that
it does not check, as those of sparse, packed and quantised tensors do. A new family whose graph needs another one gets
an error that names it: add it here if that holds for it, too.
"""

# Of aten, without overloads. Those that write into an argument are not among them; `detach_` changes no numbers.
_ATEN = """
__and__ __or__ __xor__ abs acos add addcdiv addcmul asin atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil
celu clamp clamp_max clamp_min copysign cos cosh deg2rad div elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide
fmod frac ge gelu glu gt hardsigmoid hardswish hardtanh isclose isfinite isinf isnan le leaky_relu lerp log log10 log1p
log2 log_sigmoid logaddexp logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish mul
nan_to_num ne neg pow prelu rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign silu sin sinc
sinh softplus sqrt square sub tan tanh threshold trunc where xlogy

all amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum linalg_norm
linalg_vector_norm logcumsumexp logsumexp max mean median min norm prod sort std std_mean sum topk var var_mean

addmm baddbmm bmm cdist conv1d conv2d conv3d conv_transpose1d conv_transpose2d convolution cosine_similarity dot einsum
inner linalg_cross linear matmul mm mv outer tensordot

_adaptive_avg_pool2d _log_softmax _native_batch_norm_legit_no_training
_softmax _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact2d adaptive_avg_pool1d
adaptive_avg_pool2d adaptive_max_pool2d affine_grid_generator avg_pool1d avg_pool2d batch_norm dropout embedding
feature_dropout grid_sampler grid_sampler_2d group_norm im2col instance_norm layer_norm log_softmax max_pool1d
max_pool2d max_pool2d_with_indices native_dropout native_group_norm native_layer_norm one_hot pixel_shuffle
pixel_unshuffle rms_norm scaled_dot_product_attention softmax upsample_bicubic2d upsample_bilinear2d upsample_linear1d
upsample_nearest2d

_unsafe_view alias broadcast_tensors broadcast_to bucketize cat channel_shuffle chunk clone concat constant_pad_nd
contiguous detach detach_ diag diag_embed diagonal diff expand expand_as flatten flip gather hstack index index_add
index_put index_select lift_fresh_copy mH mT masked_select matrix_H meshgrid movedim narrow nonzero numpy_T pad permute
ravel reflection_pad2d repeat repeat_interleave replication_pad2d reshape reshape_as roll rot90 scatter scatter_add
searchsorted select select_scatter slice slice_scatter split split_with_sizes squeeze stack swapaxes t take_along_dim
tensor_split tile transpose tril tril_indices triu triu_indices type_as unbind unflatten unfold unsqueeze view view_as
vstack

arange eye full full_like linspace new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like

_assert_async _assert_scalar _assert_tensor_metadata _functional_assert_scalar _to_copy item numel promote_types
result_type sym_numel sym_size sym_stride to
"""

# Of ONNX's own domain. Those of other domains, of graphs within graphs and of sequences are not among them.
_ONNX = """
Abs Acos Add And ArgMax ArgMin Asin Atan AveragePool BatchNormalization BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast
CastLike Ceil Celu CenterCropPad Clip Concat Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum
DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor
Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample
GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LayerNormalization LeakyRelu Less
LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool Mean MeanVarianceNormalization Min
Mish Mod Mul Neg NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear Range Reciprocal ReduceL1
ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
Resize Round ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign
SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""

# Layers of OpenVINO, of any of its opsets.
_OPENVINO = """
Abs Acos AdaptiveAvgPool AdaptiveMaxPool Add Asin Atan AvgPool BatchNormInference BatchToSpace BitwiseAnd BitwiseNot
BitwiseOr BitwiseXor Broadcast Ceiling Clamp Concat Const Convert ConvertLike Convolution ConvolutionBackpropData Cos
Cosh CumSum DepthToSpace Divide Einsum Elu Equal Erf Exp Eye FakeConvert FakeQuantize Floor FloorMod Gather
GatherElements GatherND Gelu Greater GreaterEqual GridSample GroupConvolution GroupConvolutionBackpropData
GroupNormalization HSigmoid HSwish HardSigmoid Interpolate IsFinite IsInf IsNaN LRN Less LessEqual Log LogSoftmax
LogicalAnd LogicalNot LogicalOr LogicalXor MVN MatMul MaxPool Maximum Minimum Mish Mod Multiply Negative NonZero
NormalizeL2 NotEqual OneHot PReLU Pad Parameter Power Range ReLU ReduceL1 ReduceL2 ReduceLogicalAnd ReduceLogicalOr
ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Reshape Result Roll Round ScaledDotProductAttention
ScatterElementsUpdate ScatterNDUpdate ScatterUpdate Select Selu ShapeOf Sigmoid Sign Sin Sinh Slice SoftMax SoftPlus
SoftSign SpaceToBatch SpaceToDepth Split Sqrt SquaredDifference Squeeze StridedSlice Subtract Swish Tan Tanh Tile TopK
Transpose Unsqueeze VariadicSplit
"""

ATEN, ONNX, OPENVINO = (frozenset(names.split()) for names in (_ATEN, _ONNX, _OPENVINO))
