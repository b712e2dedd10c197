"""The demo model: architecture qwen35 in torch, small, trained on CPU.

Shapes are those of the real family at a smaller width: every fourth layer full attention with an
output gate and partial rotary embedding, the others gated delta nets with a causal convolution.
The delta rule runs in chunks for training; tests hold it against the token loop.
"""
import dataclasses
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class Config:
    vocab: int = 6144
    layers: int = 8
    d: int = 256
    ff: int = 768
    heads: int = 4        # query heads of the attention layers
    kv_heads: int = 1
    head_dim: int = 64
    rot: int = 16         # rotated entries of a head
    sections: tuple = (3, 3, 2, 0)
    base: float = 1e7
    key_heads: int = 4    # delta net
    value_heads: int = 4
    state: int = 64
    conv: int = 4
    interval: int = 4
    eps: float = 1e-6
    ctx: int = 8192

    def recurrent(self, i):
        return (i + 1) % self.interval != 0


class RMSNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        return x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def linear(n_in, n_out, std):
    m = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(m.weight, 0.0, std)
    return m


class Attention(nn.Module):
    def __init__(self, c, std, std_out):
        super().__init__()
        self.c = c
        self.q = linear(c.d, 2 * c.heads * c.head_dim, std)  # per head: query rows, then gate rows
        self.k = linear(c.d, c.kv_heads * c.head_dim, std)
        self.v = linear(c.d, c.kv_heads * c.head_dim, std)
        self.o = linear(c.heads * c.head_dim, c.d, std_out)
        self.q_norm = RMSNorm(c.head_dim, c.eps)
        self.k_norm = RMSNorm(c.head_dim, c.eps)
        inv = c.base ** (-2.0 * torch.arange(c.rot // 2, dtype=torch.float64) / c.rot)
        self.register_buffer("inv", inv, persistent=False)

    def rope(self, x):
        n = self.c.rot // 2
        th = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * self.inv
        cos, sin = th.cos().float()[None, :, None], th.sin().float()[None, :, None]
        a, b = x[..., :n], x[..., n:2 * n]
        return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., 2 * n:]], -1)

    def forward(self, x):
        c = self.c
        B, T, _ = x.shape
        qg = self.q(x).view(B, T, c.heads, 2, c.head_dim)
        q, gate = qg[..., 0, :], qg[..., 1, :]
        k = self.k(x).view(B, T, c.kv_heads, c.head_dim)
        v = self.v(x).view(B, T, c.kv_heads, c.head_dim)
        q, k = self.rope(self.q_norm(q)), self.rope(self.k_norm(k))
        rep = c.heads // c.kv_heads
        q = q.transpose(1, 2).to(v.dtype)
        k = k.transpose(1, 2).to(v.dtype).repeat_interleave(rep, 1)
        v = v.transpose(1, 2).repeat_interleave(rep, 1)
        s = (q @ k.transpose(-1, -2)).float() / math.sqrt(c.head_dim)
        s = s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
        o = (s.softmax(-1).to(v.dtype) @ v).transpose(1, 2)
        return self.o((o * torch.sigmoid(gate)).reshape(B, T, -1))


def delta_chunked(q, k, v, g, beta, chunk=64):
    """Gated delta rule over whole sequences from the empty state.

    q, k, v [B, H, T, D] (q scaled, q and k normalised), g, beta [B, H, T]; T a multiple of chunk.
    Returns [B, H, T, D].  Formulas: docs/spec/qwen35.md section 5.4.
    """
    B, H, T, D = q.shape
    n = T // chunk
    q, k, v = (x.reshape(B, H, n, chunk, D) for x in (q, k, v))
    g, beta = g.reshape(B, H, n, chunk), beta.reshape(B, H, n, chunk, 1)
    c = g.cumsum(-1)
    lower = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    G = (c[..., :, None] - c[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    kt = k.transpose(-1, -2)
    A = (beta * (k @ kt) * G).masked_fill(~lower.tril(-1), 0.0)
    # U = (I + A)^-1 (beta V - beta exp(c) K S): solve once for both right sides
    ec = c.exp()[..., None]
    rhs = torch.cat([beta * v, beta * ec * k], -1)
    eye = torch.eye(chunk)
    sol = torch.linalg.solve_triangular(A + eye, rhs, upper=False, unitriangular=True)
    U0, W = sol[..., :D], sol[..., D:]
    QK = (q @ kt) * G
    qe = q * ec
    kd = k * (c[..., -1:] - c).exp()[..., None]
    last = c[..., -1].exp()[..., None, None]
    S = torch.zeros(B, H, D, D)
    out = []
    for i in range(n):
        U = U0[:, :, i] - W[:, :, i] @ S
        out.append(qe[:, :, i] @ S + QK[:, :, i] @ U)
        S = last[:, :, i] * S + kd[:, :, i].transpose(-1, -2) @ U
    return torch.stack(out, 2).reshape(B, H, T, D)


def delta_loop(q, k, v, g, beta):
    """The definition, one token at a time; for tests."""
    B, H, T, D = q.shape
    S = torch.zeros(B, H, D, D, dtype=q.dtype)
    out = []
    for t in range(T):
        S = S * g[:, :, t, None, None].exp()
        e = beta[:, :, t, None] * (v[:, :, t] - torch.einsum("bhxy,bhx->bhy", S, k[:, :, t]))
        S = S + k[:, :, t, :, None] * e[:, :, None, :]
        out.append(torch.einsum("bhxy,bhx->bhy", S, q[:, :, t]))
    return torch.stack(out, 2)


class DeltaNet(nn.Module):
    def __init__(self, c, std, std_out):
        super().__init__()
        self.c = c
        kd, vd = c.key_heads * c.state, c.value_heads * c.state
        self.kd, self.vd = kd, vd
        self.qkv = linear(c.d, 2 * kd + vd, std)
        self.z = linear(c.d, vd, std)
        self.beta = linear(c.d, c.value_heads, std)
        self.alpha = linear(c.d, c.value_heads, std)
        self.conv = nn.Parameter(torch.randn(2 * kd + vd, c.conv) / math.sqrt(c.conv))
        self.a_log = nn.Parameter(torch.log(torch.empty(c.value_heads).uniform_(1, 8)))
        dt = torch.exp(torch.empty(c.value_heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus(self.dt) = dt
        self.norm = RMSNorm(c.state, c.eps)
        self.out = linear(vd, c.d, std_out)

    def forward(self, x):
        c = self.c
        B, T, _ = x.shape
        u = self.qkv(x).float()
        p = F.pad(u, (0, 0, c.conv - 1, 0))
        y = sum(p[:, t:t + T] * self.conv[:, t] for t in range(c.conv))
        y = F.silu(y)
        heads = lambda t, n: t.view(B, T, n, c.state).transpose(1, 2)
        l2 = lambda t: t / t.norm(dim=-1, keepdim=True).clamp_min(c.eps)
        q = l2(heads(y[..., :self.kd], c.key_heads)) / math.sqrt(c.state)
        k = l2(heads(y[..., self.kd:2 * self.kd], c.key_heads))
        v = heads(y[..., 2 * self.kd:], c.value_heads)
        rep = c.value_heads // c.key_heads  # value head h reads key head h mod key_heads
        q, k = q.repeat(1, rep, 1, 1), k.repeat(1, rep, 1, 1)
        g = (-self.a_log.exp() * F.softplus(self.alpha(x).float() + self.dt)).transpose(1, 2)
        b = torch.sigmoid(self.beta(x).float()).transpose(1, 2)
        o = delta_chunked(q, k, v, g, b).transpose(1, 2)
        z = self.z(x).view(B, T, c.value_heads, c.state)
        return self.out((self.norm(o) * F.silu(z.float())).reshape(B, T, -1))


class Block(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        std, std_out = 0.5 / math.sqrt(c.d), 0.5 / math.sqrt(c.d) / math.sqrt(2 * c.layers)
        self.norm = RMSNorm(c.d, c.eps)
        self.mixer = (DeltaNet if c.recurrent(i) else Attention)(c, std, std_out)
        self.ffn_norm = RMSNorm(c.d, c.eps)
        self.gate = linear(c.d, c.ff, std)
        self.up = linear(c.d, c.ff, std)
        self.down = linear(c.ff, c.d, std_out)

    def forward(self, x):
        x = x + self.mixer(self.norm(x))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.vocab, c.d)
        nn.init.normal_(self.embed.weight, 0.0, 0.02)
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.layers))
        self.norm = RMSNorm(c.d, c.eps)

    def forward(self, ids, n_logits=None):
        """ids [B, T], T a multiple of 64 -> logits [B, T, vocab]; the head is the embedding."""
        x = self.embed(ids)
        for b in self.blocks:
            x = b(x)
        return F.linear(self.norm(x), self.embed.weight)

    @torch.no_grad()
    def greedy(self, ids, n, stop):
        """Plain recomputation, for a quick look during training; serving is the engine's."""
        ids = list(ids)
        for _ in range(n):
            T = len(ids)
            x = torch.tensor([ids + [0] * (-T % 64)])
            t = int(self(x)[0, T - 1].argmax())
            ids.append(t)
            if t in stop:
                break
        return ids


if __name__ == "__main__":
    torch.manual_seed(0)
    B, H, T, D = 2, 3, 256, 16
    q, k = (F.normalize(torch.randn(B, H, T, D), dim=-1) for _ in range(2))
    v, g, b = torch.randn(B, H, T, D), -torch.rand(B, H, T) * 0.2, torch.rand(B, H, T)
    err = (delta_chunked(q, k, v, g, b) - delta_loop(q, k, v, g, b)).abs().max()
    m = Model(Config())
    print("chunked against loop: %.1e" % err, "parameters: %.2f M" %
          (sum(p.numel() for p in m.parameters()) / 1e6))
    assert err < 1e-4
