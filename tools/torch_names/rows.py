"""Calls of torch's functions, methods and layers, by family: each is written once for both.

`T` is the tensor's class or the package torch, `F` and `nn` are functional and nn, `S` special, `W`
the windows of signals; single letters are operands of the family (`operands.py`). Of `{a|b}` one
is drawn. What stands before ``@`` makes a layer, which is called on what stands behind. A call's
name is that of its first function. In place are methods of a copy of x, or of the operand behind
the colon.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TEXT: Final = {
    "elementwise": """
        x.abs()  x.absolute()  u.acos()  u.arccos()  (p + 1).acosh()  (p + 1).arccosh()
        x.add(y, alpha={1|2|3})  x.addcmul(y, z, value={1|2})  x.addcdiv(y, p, value={1|2})
        u.asin()  u.arcsin()  x.asinh()  x.arcsinh()  x.atan()  x.arctan()  u.atanh()  u.arctanh()
        x.atan2(y)  x.arctan2(y)  x.bitwise_and(y)  x.bitwise_or(y)  x.bitwise_xor(y)
        x.bitwise_not()  x.bitwise_left_shift(i.abs())  x.bitwise_right_shift(i.abs())  x.ceil()
        x.clamp({1|0}, {1|2})  x.clamp(min=y)  x.clip(max={1|2})  x.clamp_min({0|1})
        x.clamp_max({0|1})  x.copysign(y)  x.cos()  x.cosh()  x.deg2rad()  x.div(p)
        x.div(p, rounding_mode={None|'trunc'|'floor'})  x.divide(p)  x.true_divide(p)
        x.floor_divide(p)  x.eq(y)  x.erf()  x.exp()  x.exp2()  x.expm1()  x.fix()
        x.float_power({2|3})  x.floor()  x.fmax(y)  x.fmin(y)  x.fmod(p)  x.frac()
        x.frexp()
        x.gcd(y)  x.ge(y)  x.greater_equal(y)  x.gt(y)  x.greater(y)  x.heaviside(y)  x.hypot(y)
        x.isclose(y)  x.isfinite()  x.isinf()  x.isnan()  x.isneginf()  x.isposinf()  x.isreal()
        x.lcm(y)  x.ldexp(i)  x.le(y)  x.less_equal(y)  x.lerp(y, {0.25|0.5|2})  x.lt(y)  x.less(y)
        p.log()  p.log10()  p.log1p()  p.log2()  x.logaddexp(y)  x.logaddexp2(y)
        x.logical_and(y)  x.logical_not()  x.logical_or(y)  x.logical_xor(y)
        u.logit(eps={0.01|0.1|0.3})  x.maximum(y)  x.minimum(y)  x.mul(y)  x.multiply(y)
        x.nan_to_num({0|1})  (x / (x > 0)).nan_to_num(2, 3, -4)  x.ne(y)  x.not_equal(y)
        x.neg()  x.negative()  x.nextafter(y)  x.positive()  p.pow({2|0.5|3|-1})  p.pow(y)
        x.rad2deg()  p.reciprocal()  x.remainder(p)  x.round()  x.round(decimals={1|-1|2})
        p.rsqrt()
        T.rsub(x, y)  x.sgn()  x.sigmoid()  x.sign()  x.signbit()  x.sin()  x.sinc()  x.sinh()
        p.sqrt()  x.square()  x.sub(y, alpha={1|2|3})  x.subtract(y)  u.tan()  x.tanh()
        x.trunc()  T.where(m, x, y)  x.xlogy(p)  x.equal(x)  x.allclose(x)
        x.masked_fill(m, {0|1})  x.conj_physical()  x.relu()
    """,
    "in place": """
        abs_  acos_:u  acosh_:p  add_(y)  addcmul_(y, z)  addcdiv_(y, p)  asin_:u  asinh_  atan_
        atanh_:u  atan2_(y)  bitwise_and_(y)  bitwise_or_(y)  bitwise_xor_(y)  bitwise_not_  ceil_
        clamp_(0, 1)  clip_(max=1)  clamp_min_(1)  clamp_max_(1)  copysign_(y)  copy_(y)  cos_
        cosh_  deg2rad_  div_(p)  divide_(p)  true_divide_(p)  floor_divide_(p)  eq_(y)  erf_
        erfc_  erfinv_:u  exp_  exp2_  expm1_  fill_({1|2})  fix_  float_power_(2)  floor_  fmod_(p)
        frac_  gcd_(y)  ge_(y)  greater_(y)  greater_equal_(y)  gt_(y)  heaviside_(y)  hypot_(y)
        i0_  lcm_(y)  ldexp_(i)  le_(y)  lerp_(y, 0.5)  less_(y)  less_equal_(y)  lgamma_:p
        digamma_:p  log_:p  log10_:p  log1p_:p  log2_:p  logical_and_(y)  logical_not_
        logical_or_(y)  logical_xor_(y)  logit_(0.1):u  lt_(y)  masked_fill_(m, 1)  mul_(y)
        multiply_(y)  nan_to_num_  ne_(y)  not_equal_(y)  neg_  negative_  nextafter_(y)  pow_(2):p
        rad2deg_  reciprocal_:p  relu_  remainder_(p)  round_  rsqrt_:p  sgn_  sigmoid_  sign_
        sin_  sinc_  sinh_  sqrt_:p  square_  sub_(y)  subtract_(y)  tan_:u  tanh_  trunc_
        xlogy_(p)  zero_  cumsum_(0):c  cumprod_(0):c  tril_:c  triu_:c
         index_add_(0, r, c):c  index_copy_(0, r, c):c
        index_fill_(0, r, 1):c  scatter_(0, a, c):c  scatter_add_(0, a, c):c  put_(r, v):c
        index_put_((r,), c):c  masked_scatter_(c > 0, c):c  renorm_(2, 0, 1.5):c
        fill_diagonal_(2):c  addmm_(c, e):c  addr_(w, v):c  addmv_(c, v):w
    """,
    "special": """
        p.lgamma()  p.digamma()  p.polygamma({1|2|3})  u.erfinv()  x.erfc()  x.i0()  p.igamma(q)
        p.igammac(q)  (p + 3).mvlgamma({1|2})  S.airy_ai(x)  S.bessel_j0(x)  S.bessel_j1(x)
        S.bessel_y0(p)  S.bessel_y1(p)  S.digamma(p)  S.entr(p)  S.erf(x)  S.erfc(x)  S.erfcx(x)
        S.erfinv(u)  S.exp2(x)  S.expit(x)  S.expm1(x)  S.gammainc(p, q)  S.gammaincc(p, q)
        S.gammaln(p)  S.i0(x)  S.i0e(x)  S.i1(x)  S.i1e(x)  S.log1p(p)  S.log_ndtr(x)
        S.log_softmax(x, -1)  S.logit(u.abs() * 0.9 + 0.05)  S.logsumexp(x, -1)
        S.modified_bessel_i0(x)  S.modified_bessel_i1(x)  S.modified_bessel_k0(p)
        S.modified_bessel_k1(p)  S.multigammaln(p + 3, {1|2|3})  S.ndtr(x)
        S.ndtri(u.abs() * 0.9 + 0.05)  S.polygamma({0|1|2}, p)  S.psi(p)  S.round(x)
        S.scaled_modified_bessel_k0(p)  S.scaled_modified_bessel_k1(p)  S.sinc(x)
        S.softmax(x, -1)  S.spherical_bessel_j0(x)  S.xlog1py(x, p)  S.xlogy(x, p)
        S.zeta(p + 1.25, q)  S.chebyshev_polynomial_t(u, {1|4})  S.chebyshev_polynomial_u(u, {1|4})
        S.chebyshev_polynomial_v(u, {1|4})  S.chebyshev_polynomial_w(u, {1|4})
        S.hermite_polynomial_h(u, {1|4})  S.hermite_polynomial_he(u, {1|4})
        S.laguerre_polynomial_l(u, {1|4})  S.legendre_polynomial_p(u, {1|4})
        S.shifted_chebyshev_polynomial_t(u, 3)  S.shifted_chebyshev_polynomial_u(u, 3)
        S.shifted_chebyshev_polynomial_v(u, 3)  S.shifted_chebyshev_polynomial_w(u, 3)
    """,
    "windows": """
        W.bartlett({n|7}, sym={True|False})  W.blackman({n|7}, sym={True|False})
        W.cosine({n|7}, sym={True|False})  W.exponential({n|7}, tau={1.0|3.0}, sym={True|False})
        W.gaussian({n|7}, std={1.0|3.0}, sym={True|False})
        W.general_cosine({n|7}, a=[0.5, 0.3, 0.2], sym={True|False})
        W.general_hamming({n|7}, alpha={0.5|0.6}, sym={True|False})
        W.hamming({n|7}, sym={True|False})  W.hann({n|7}, sym={True|False})
        W.kaiser({n|7}, beta={3.0|12.0}, sym={True|False})  W.nuttall({n|7}, sym={True|False})
    """,
    "products": """
        x.mm(y)  x.mv(v)  x.matmul(y)  z.addmm(x, y, beta={0|1|2}, alpha={1|3})
        w.addmv(x, v, beta={1|2}, alpha={1|3})  z.addr(w, h, beta={1|2}, alpha={1|3})
        b.bmm(d)  e.baddbmm(b, d, beta={0|1|2}, alpha={1|3})  b[0].addbmm(b, d, alpha={1|2})
        w.outer(h)  w.ger(h)  x.inner(v)  x.inner(x)  g.kron(o)
        T.dot(x.ravel(), x.ravel())  T.vdot(x.ravel(), x.ravel())
        T.tensordot(x, y, {1|0})  T.tensordot(x, x, ([0], [0]))  k.cross(k + 1, dim={1|-1})
        z.trace()  T.block_diag(x, y)  T.cdist(x, x + 1, {1.0|2.0|3.0})  x.cov(correction={0|1})
        x.corrcoef()  T.einsum('ij,jk->ik', x, y)  T.einsum('bij,bjk->bk', b, d)
        x.dist(x * 2, {1|2|3})  F.pdist(x)
    """,
    "order": """
        x.unique()  x.unique(return_inverse=True, return_counts=True)  x.unique(dim={0|1})
        x.unique_consecutive(return_inverse=True)  x.unique_consecutive(dim=1)
        T.searchsorted(s, x, right={True|False})  T.bucketize(x, s, right={True|False})
        x.kthvalue({1|2}, {0|1})[0]
        x.median(1)[0]
        x.median()  x.nanmedian()
        x.quantile({0.3|0.5|0.9}, {0|1|None})  x.nanquantile({0.3|0.5}, {0|1})
        x.mode(1)[0]
        T.isin(x, y, invert={True|False})  x.histc({5|7}, -3, 3)  x.histogram({4|6})
        T.histogramdd(x, {2|3})[0]
        i.bincount()  x.msort()  x.sort(dim={0|1}, stable=True, descending={True|False})
        x.argsort(dim=1, stable=True)
        x.topk(2, {0|1}, largest={True|False})[0]
        x.cummax(1)  x.cummin(0)  x.argmax(1)  x.argmin(0)
    """,
    "reductions": """
        x.sum({0|1|(0, 2)|None})  x.sum(1, keepdim=True, dtype=T.float64)  x.mean({0|1|(0, 2)})
        x.prod({0|1|2})  x.std({0|1|None}, correction={0|1})  x.var({0|1|None}, correction={0|1})
        T.std_mean(x, 1)  T.var_mean(x, 1)  x.amax({0|(0, 1)})  x.amin({2|(0, 1)})
        x.aminmax(dim={0|1})  x.nansum({0|1|(0, 2)})  x.nanmean({0|1|(0, 2)})
        x.count_nonzero({0|1|(0, 2)})  x.diff({1|2}, {0|1|2})  T.trapezoid(x, dx={1|0.5}, dim={0|1})
        T.trapz(x, dim={0|1})  T.cumulative_trapezoid(x, dim={0|1})
        x.norm({1|2|3}, {0|1})  x.norm(p={'fro'|math.inf|0}, dim={0|1})  x.renorm({1|2}, {0|1}, 1.5)
        x.logsumexp({0|1})  x.cumsum({0|1|2})  x.cumsum(1, dtype=T.float32)  x.cumprod({0|1})
        x.logcumsumexp({0|1})  x.all({0|1})  x.any({0|1})  x.max()
        x.min()
        x.softmax({0|1|2})  x.log_softmax({0|1|2})  x.nansum()
    """,
    "movement": """
        x.narrow({0|1|2}, 1, 1)  x.narrow_copy({0|1}, 1, 1)  x.select({0|1|2}, {0|-1})
        x.unbind({0|1|2})  x.movedim({0|1}, 2)  x.moveaxis(-1, 0)  x.swapaxes(0, {1|2})
        x.swapdims(0, 1)  x.transpose({0|1}, 2)  x.permute(2, 0, 1)  x.rot90({1|2|3|-1}, (0, {1|2}))
        x.fliplr()  x.flipud()  x.flip({0|1|(0, 2)})  x.roll({1|-2}, {0|1})  x.ravel()
        x.flatten({0|1})  x.unflatten(0, (1, -1))  x.tensor_split({2|3}, {0|1})
        x.tensor_split((1, 2), dim={0|1})  x.chunk({2|3}, {0|1})  x.split({1|2}, {0|1})
        x.split_with_sizes([1, x.shape[0] - 1])  x.hsplit({1|[1]})  x.vsplit({1|[1]})
        x.dsplit({1|[1]})  x.tile((2, 1, {1|3}))  x.repeat(2, 1, {1|3})
        x.repeat_interleave({2|3}, {0|1|None})  x.expand(2, -1, -1, -1)
        x[0, 0].broadcast_to(({2|4}, x.shape[2]))  x[:, :, :1].expand_as(x)  x.reshape_as(x)
        x.view_as(x)  x.reshape(-1)  x.view(-1, x.shape[2])  x.squeeze()  x.unsqueeze({0|-1})
        x[0].t()  x.adjoint()
        x.mT
        x.mH
        x[0].H
        T.atleast_1d(x[0, 0, 0])  T.atleast_2d(x[0, 0])  T.atleast_3d({x[0]|x[0, 0]})
        T.hstack((x, x))  T.vstack((x, x))  T.dstack((x, x))  T.column_stack((x[0], x[0]))
        T.row_stack((x, x))  T.cat((x, x + 1), {0|1})  T.concat((x, x + 1), {0|1})
        T.concatenate((x, x), {0|2})  T.stack((x, x), {0|-1})  x.diag_embed({0|1|-1})
        x[0].diag({0|1|-1})  x[0, 0].diagflat({0|1|-1})  x.diagonal({0|1}, 0, 2)
        T.triu_indices({3|4}, {2|5}, {0|1})  T.tril_indices({3|4}, {2|5}, {0|1})
        x.tril({0|1|-1})  x.triu({0|1|-1})  x.take(j)  x.take_along_dim(a, 0)
        x.select_scatter(x[:, 0] * 2, 1, 1)  x.slice_scatter(x[:1] * 2, 0, 1, 2)
        x[0].diagonal_scatter(x[0].diagonal() * 2)  T.as_strided(x, (2, 2), ({1|2}, 1), {0|1})
        x.as_strided((2, 3), (1, {0|2}))
        x.as_strided_scatter(x[:1, :1, :2] * 2, (1, 1, 2), (1, 1, 2))
        T.broadcast_tensors(x, x[0])  T.meshgrid(x[0, 0], x[0, :, 0], indexing={'ij'|'xy'})
        x.unfold({0|1}, 2, {1|2})  x.clone()  x.contiguous()
    """,
    "index": """
        x.index_add({0}, r, x, alpha={1|2})  x.index_copy(0, r, x * 2)  x.index_fill(0, r[:1], 2)
        x.index_select(0, r)  x.index_put((r,), x * 2)
        x.index_put((r, r % 2), x[:, 0], accumulate=True)
        x.index_reduce(0, r, x, {'prod'|'mean'|'amax'|'amin'}, include_self={True|False})
        x.masked_scatter(x > 0, x * 2)  x.masked_select(x > 0)
        x.put(j, x.reshape(-1)[: j.shape[0]])
        x.gather(0, a)  x.scatter(0, a, x * 2)  x.scatter_add(0, a, x)
        x.scatter_reduce(0, a, x, {'sum'|'mean'|'amax'|'amin'})  x.argwhere()  x.nonzero()
        x.nonzero(as_tuple=True)
        F.embedding(a[0] % 2, x[:, 0])
        F.embedding_bag(a[0] % 2, x[:, 0], mode={'sum'|'mean'|'max'})
        F.one_hot(a[0], x.shape[0])
    """,
    "nn": """
        F.celu(x, {0.5|1.0})  F.elu(x, {0.5|1.0})  F.gelu(x, approximate={'none'|'tanh'})
        F.glu(x, 1)  F.hardshrink(x, {0.5|1.0})  F.hardsigmoid(x)  F.hardswish(x)
        F.hardtanh(x, -1.0, {0.5|1.0})  F.leaky_relu(x, {0.01|0.2})  F.logsigmoid(x)  F.mish(x)
        F.prelu(x, c)  F.relu(x)  F.relu6(x)  F.rrelu(x, 0.1, 0.3)  F.selu(x)  F.silu(x)
        F.softplus(x, {1|2}, 20)  F.softshrink(x, {0.5|1.0})  F.softsign(x)  F.tanhshrink(x)
        F.threshold(x, {0.5|1.0}, {0.0|2.0})  F.softmin(x, 1)  F.softmax(x, 1)  F.log_softmax(x, 3)
        F.sigmoid(x)  F.tanh(x)  F.dropout(x, 0.5, False)  F.dropout1d(x[0], 0.5, False)
        F.dropout2d(x, 0.5, False)  F.dropout3d(x[None], 0.5, False)
        F.alpha_dropout(x, 0.5, False)  F.feature_alpha_dropout(x, 0.5, False)
        F.relu_(x * 1)  F.celu_(x * 1)  F.elu_(x * 1)  F.hardtanh_(x * 1)  F.leaky_relu_(x * 1)
        F.rrelu_(x * 1)  F.selu_(x * 1)  F.threshold_(x * 1, 0.5, 2.0)
        F.adaptive_avg_pool1d(x[0], {2|3})  F.adaptive_avg_pool2d(x, {2|(3, 2)|(None, 2)})
        F.adaptive_avg_pool3d(x, {2|(3, 2, 2)})
        F.adaptive_max_pool1d(x[0], {2|3}, {True|False})  F.adaptive_max_pool2d(x, 2, {True|False})
        F.adaptive_max_pool3d(x, 2, {True|False})  F.adaptive_max_pool1d_with_indices(x[0], 2)
        F.adaptive_max_pool2d_with_indices(x, {2|3})  F.adaptive_max_pool3d_with_indices(x, 2)
        F.avg_pool1d(x[0], {2|3}, {1|2}, {0|1}, {True|False}, {True|False})
        F.avg_pool2d(x, {2|3}, {None|1|2}, {0|1}, {True|False}, {True|False}, {None|2})
        F.avg_pool3d(x[None], 2, {None|1}, {0|1})
        F.max_pool1d(x[0], {2|3}, {1|2}, {0|1}, {1|2})
        F.max_pool2d(x, 2, {None|1|2}, {0|1}, {1|2}, {True|False}, {True|False})
        F.max_pool3d(x[None], 2, {None|1}, {0|1})  F.max_pool1d_with_indices(x[0], 2, {1|2})
        F.max_pool2d_with_indices(x, {2|3}, {1|2})  F.max_pool3d_with_indices(x[None], 2, {1|2})
        F.fractional_max_pool2d(x, 2, {2|(3, 2)}, None, True, f)
        F.fractional_max_pool2d_with_indices(x, 2, None, {(0.5, 0.5)|(0.6, 0.5)}, True, f)
        F.fractional_max_pool3d(x[None].repeat(1, 1, 3, 1, 1), 2, {2|(3, 2, 2)}, None, True, k)
        F.fractional_max_pool3d_with_indices(x[None].repeat(1, 1, 3, 1, 1), 2, 2, None, False, k)
        F.max_unpool1d(*F.max_pool1d(x[0], 2, 2, 0, 1, False, True), 2)
        F.max_unpool2d(*F.max_pool2d(x, 2, 2, 0, 1, False, True), 2)
        F.max_unpool3d(*F.max_pool3d(x[None], 2, 2, 0, 1, False, True), 2)
        F.lp_pool1d(x[0].abs() + 0.5, {2.0|3.0}, 2)  F.lp_pool2d(x.abs() + 0.5, {2.0|3.0}, 2, {1|2})
        F.lp_pool3d(x.abs() + 0.5, 2.0, 2)
        F.unfold(x, {2|3}, {1|2}, {0|1})  F.fold(F.unfold(x, 2), x.shape[2:], 2)
        F.affine_grid(g, (g.shape[0], 2, {3|4}, 5), align_corners={True|False})
        F.grid_sample(x, l, {'bilinear'|'nearest'|'bicubic'}, {'zeros'|'border'}, False)
        F.interpolate(x, {5|(3, 9)}, mode={'nearest'|'bilinear'|'bicubic'|'area'|'nearest-exact'})
        F.interpolate(x, scale_factor={2|1.5}, mode={'nearest'|'bilinear'})
        F.upsample(x, {5|9}, mode={'nearest'|'bilinear'})  F.upsample_nearest(x, {5|9})
        F.upsample_bilinear(x, {5|9})
        F.group_norm(x, {1|2})  F.instance_norm(x)  F.layer_norm(x, x.shape[2:])
        F.local_response_norm(x, {2|3})  F.rms_norm(x, x.shape[3:])  F.normalize(x, {1|2}, {1|3})
        F.batch_norm(x, None, None, None, None, True)  F.batch_norm(x, c, c.abs() + 1, c, c)
        F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)
        F.pixel_unshuffle(F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2), 2)
        F.channel_shuffle(x, {1|2})
        F.pad(x, (1, {0|2|-1}, 2, 1), {'constant'|'reflect'|'replicate'|'circular'})
        F.linear(x, t, {None|t[:, 0]})  F.bilinear(x[:, :, :, :1], x[:, :, :, :1], t[:2, :1, None])
        F.cosine_similarity(x, x + 1, {1|3})  F.pairwise_distance(x, x + 1, {1.0|2.0})
        F.conv1d(x[0], o, padding={0|1|'same'})  F.conv2d(x, q, stride={1|2}, padding={0|1})
        F.conv3d(x[:1][None], s, padding={0|1})
        F.conv_transpose1d(x[0], o.transpose(0, 1), stride={1|2})
        F.conv_transpose2d(x, q.transpose(0, 1), stride={1|2}, padding={0|1})
        F.conv_transpose3d(x[:1][None], s, padding={0|1})
        F.scaled_dot_product_attention(x, x, x, is_causal={True|False})
        F.gumbel_softmax(x, dim=1).sum()
    """,
    "losses": """
        F.l1_loss(x, y, reduction={R})  F.mse_loss(x, y, reduction={R})
        F.smooth_l1_loss(x, y, reduction={R}, beta={0.5|1.0})
        F.huber_loss(x, y, reduction={R}, delta={0.5|1.0})
        F.kl_div(x, u, reduction={'mean'|'sum'|'none'|'batchmean'}, log_target={True|False})
        F.poisson_nll_loss(x, p, log_input={True|False}, full={True|False}, reduction={R})
        F.gaussian_nll_loss(x, y, p, full={True|False}, reduction={R})
        F.binary_cross_entropy(u, b, reduction={R})
        F.binary_cross_entropy_with_logits(x, b, reduction={R}, pos_weight={None|w})
        F.cross_entropy(x, c, ignore_index={-100|1}, label_smoothing={0.0|0.1}, reduction={R})
        F.cross_entropy(x, c, w, reduction={R})  F.nll_loss(x, c, {None|w}, reduction={R})
        F.cosine_embedding_loss(x, y, g, {0.0|0.3}, reduction={R})
        F.hinge_embedding_loss(x, s, {1.0|0.5}, reduction={R})
        F.margin_ranking_loss(x[:, 0], y[:, 0], g, {0.0|0.5}, reduction={R})
        F.soft_margin_loss(x, s, reduction={R})
        F.multi_margin_loss(x, c, {1|2}, {1.0|0.5}, reduction={R})
        F.multilabel_margin_loss(x, l, reduction={R})
        F.multilabel_soft_margin_loss(x, b, reduction={R})
        F.triplet_margin_loss(x, y, z, {1.0|0.5}, {1.0|2.0}, swap={True|False}, reduction={R})
        F.triplet_margin_with_distance_loss(x, y, z, margin={1.0|0.5}, reduction={R})
        F.ctc_loss(k.log_softmax(-1), t, a, d, reduction={R})
    """,
    "layers": """
        nn.Linear(4, {3|1}, bias={True|False}) @ s  nn.Bilinear(4, 4, {3|1}) @ s, s
        nn.Identity() @ x  nn.Flatten({0|1}) @ x  nn.Unflatten(1, (2, -1)) @ x
        nn.Conv1d(4, 2, {2|3}, padding={0|1}) @ c  nn.Conv2d(4, 2, {2|3}, stride={1|2}) @ x
        nn.Conv3d(4, 2, 2, padding={0|1}) @ v  nn.ConvTranspose1d(4, 2, 2, {1|2}) @ c
        nn.ConvTranspose2d(4, 2, 2, {1|2}) @ x  nn.ConvTranspose3d(4, 2, 2, {1|2}) @ v
        nn.Embedding(5, 3) @ i  nn.EmbeddingBag(5, 3, mode={'sum'|'mean'|'max'}) @ i
        nn.BatchNorm1d(4) @ c  nn.BatchNorm2d(4, eps={1e-5|0.1}) @ x  nn.BatchNorm3d(4) @ v
        nn.InstanceNorm1d(4) @ c  nn.InstanceNorm2d(4, affine={True|False}) @ x
        nn.InstanceNorm3d(4) @ v  nn.GroupNorm({1|2}, 4) @ x  nn.LayerNorm(4) @ s
        nn.RMSNorm(4, eps=1e-5) @ s  nn.LocalResponseNorm({2|3}) @ x
        nn.RNN(4, 3, {1|2}, nonlinearity={'tanh'|'relu'}, bidirectional={True|False}) @ s
        nn.LSTM(4, 3, {1|2}, batch_first={True|False}, bidirectional={True|False}) @ s
        nn.LSTM(4, 3, proj_size=2) @ s
        nn.GRU(4, 3, {1|2}, bias={True|False}, bidirectional={True|False}) @ s
        nn.RNNCell(4, 3) @ s[0]  nn.LSTMCell(4, 3) @ s[0]  nn.GRUCell(4, 3) @ s[0]
        nn.MultiheadAttention(4, {1|2}, batch_first={True|False}) @ s, s, s
        nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first={True|False}) @ s
        nn.TransformerDecoderLayer(4, 2, 8, 0.0, norm_first={True|False}) @ s, s
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0), 2) @ s
        nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, 0.0), 2) @ s, s
        nn.Transformer(4, 2, 1, 1, 8, 0.0) @ s, s
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)) @ s
        nn.ReLU() @ x  nn.ReLU6() @ x  nn.Hardtanh() @ x  nn.LeakyReLU({0.01|0.2}) @ x  nn.ELU() @ x
        nn.CELU(0.5) @ x  nn.SELU() @ x  nn.SiLU() @ x  nn.Mish() @ x  nn.Hardsigmoid() @ x
        nn.Hardswish() @ x  nn.Threshold(0.5, 2.0) @ x  nn.GELU() @ x  nn.Sigmoid() @ x
        nn.Tanh() @ x
        nn.LogSigmoid() @ x  nn.Softsign() @ x  nn.Softplus() @ x  nn.Tanhshrink() @ x
        nn.Hardshrink() @ x  nn.Softshrink() @ x  nn.GLU({1|-3}) @ x  nn.Softmax(1) @ x
        nn.LogSoftmax(1) @ x  nn.Softmin(1) @ x  nn.Softmax2d() @ x  nn.PReLU({1|4}) @ x
        nn.RReLU() @ x  nn.Dropout() @ x  nn.Dropout1d() @ c  nn.Dropout2d() @ x  nn.Dropout3d() @ v
        nn.AlphaDropout() @ x  nn.FeatureAlphaDropout() @ x  nn.AvgPool1d(2) @ c
        nn.AvgPool2d(2, {1|2}) @ x  nn.AvgPool3d(2) @ v  nn.MaxPool1d(2) @ c
        nn.MaxPool2d(2, {1|2}) @ x  nn.MaxPool3d(2) @ v  nn.LPPool1d(2, 2) @ c.abs() + 0.5
        nn.LPPool2d(2, 2) @ x.abs() + 0.5  nn.LPPool3d(2, 2) @ v.abs() + 0.5
        nn.AdaptiveAvgPool1d(2) @ c  nn.AdaptiveAvgPool2d(2) @ x  nn.AdaptiveAvgPool3d(2) @ v
        nn.AdaptiveMaxPool1d(2) @ c  nn.AdaptiveMaxPool2d(2) @ x  nn.AdaptiveMaxPool3d(2) @ v
        nn.FractionalMaxPool2d(2, 2, _random_samples=f) @ x
        nn.FractionalMaxPool3d(2, 2, _random_samples=k) @ v
        nn.Unfold(2) @ x  nn.Fold(x.shape[2:], 2) @ F.unfold(x, 2)  nn.PixelShuffle(2) @ x
        nn.PixelUnshuffle(1) @ x  nn.ChannelShuffle(2) @ x
        nn.Upsample(scale_factor=2, mode={'nearest'|'bilinear'}) @ x
        nn.UpsamplingNearest2d(scale_factor=2) @ x  nn.UpsamplingBilinear2d(scale_factor=2) @ x
        nn.ZeroPad1d({1|2}) @ c  nn.ZeroPad2d({1|2}) @ x  nn.ZeroPad3d(1) @ v
        nn.ConstantPad1d(1, {0.5|2.0}) @ c  nn.ConstantPad2d({1|(1, 0, 2, 1)}, 2.0) @ x
        nn.ConstantPad3d(1, 2.0) @ v  nn.ReflectionPad1d(1) @ c  nn.ReflectionPad2d(1) @ x
        nn.ReflectionPad3d(1) @ v  nn.ReplicationPad1d(2) @ c  nn.ReplicationPad2d(2) @ x
        nn.ReplicationPad3d(1) @ v  nn.CircularPad1d(1) @ c  nn.CircularPad2d(1) @ x
        nn.CircularPad3d(1) @ v  nn.CosineSimilarity(1) @ x, x + 1
        nn.PairwiseDistance(2) @ s, s + 1
        nn.L1Loss() @ x, x + 1  nn.MSELoss() @ x, x * 2  nn.SmoothL1Loss() @ x, x * 2
        nn.HuberLoss() @ x, x * 2  nn.KLDivLoss(reduction='sum') @ x, x.abs() + 0.1
        nn.PoissonNLLLoss() @ x, x.abs()  nn.GaussianNLLLoss() @ x, x * 2, x.abs() + 1
        nn.BCEWithLogitsLoss() @ x, x.abs() / 9  nn.BCELoss() @ x.sigmoid(), x.abs() / 9
        nn.CrossEntropyLoss() @ s[0], i[0]  nn.NLLLoss() @ s[0], i[0]
        nn.MarginRankingLoss() @ c, c * 2, c.sign()  nn.SoftMarginLoss() @ c, c.sign()
        nn.HingeEmbeddingLoss() @ c, c.sign()
        nn.CosineEmbeddingLoss() @ s[0], s[1], s[0, :, 0].sign()
        nn.MultiMarginLoss() @ s[0], i[0]  nn.MultiLabelSoftMarginLoss() @ s[0], s[0].abs() / 9
        nn.TripletMarginLoss() @ s[0], s[1], s[0] * 2
    """,
}


class Row(NamedTuple):
    """A call in both libraries.

    Attributes:
        family: whose operands it has.
        name: of torch's, which it counts for.
        call: what is evaluated, with choices.
    """

    family: str
    name: str
    call: str


_REDUCTIONS: Final = "'mean'|'sum'|'none'"
_NAME: Final = re.compile(r"(\((?:[^()]|\([^()]*\))*\)|\w+)(?:\[.*?\])?\.(\w+)")


def _rows(family: str, text: str) -> list[Row]:
    found = []
    for call in re.split(r"\s{2,}|\n", text.replace("{R}", f"{{{_REDUCTIONS}}}")):
        if call and family == "in place":
            method, _, operand = call.partition(":")
            name, opened, arguments = method.partition("(")
            written = f"({operand or 'x'} * 1).{name}({arguments if opened else ')'}"
            found.append(Row(family, name, written))
        elif call:
            named = _NAME.match(call)
            assert named, call
            owner = f"{named[1]}." if named[1] in ("F", "S", "W", "nn") else ""
            found.append(Row(family, owner + named[2], call))
    return found


ROWS: Final = [row for family, text in _TEXT.items() for row in _rows(family, text)]
