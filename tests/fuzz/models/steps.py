"""The statements of a case after its model: templates by group, and how often a group is drawn.

Fields in braces are drawn for each statement: see `draw._Fields`. HARD ones make later calls fail, with torch's error.
"""

WEIGHTS = """
with torch.no_grad(): {tensor}.mul_(-1)
with torch.no_grad(): {tensor}.add_(1)
with torch.no_grad(): {statistic}.add_(1)
with torch.inference_mode(): {tensor}.mul_(0.5)
{tensor}.data.mul_(2)
{tensor}.data[0] = 3
{tensor}.data.view(-1)[0] = {number}
{tensor}.data = -{tensor}.data
{tensor}.data = {tensor}.data.clone()
{tensor}.data = torch._neg_view({tensor}.data)
{tensor}.data = torch.complex({tensor}.data, {tensor}.data).conj().imag
{tensor}.data = laid({tensor}.data, {layout})
{tensor}.set_(({tensor} * 2).detach())
{tensor}.grad = None
{tensor} = nn.Parameter(-{tensor}.detach())
{tensor}.requires_grad_({bool})
{statistic}.data.add_(0.5)
by_numpy({tensor}, -2)
by_numpy({statistic}, 2)
replace(model, {n}, {weight!r}, {layout}, {n})
torch.nn.init.ones_({tensor})
conv(model, {n}).reset_parameters()
norm(model, {n}).running_var.fill_(0)
norm(model, {n}).reset_running_stats()
torch.nn.utils.vector_to_parameters(as_vector(model), model.parameters())
model.requires_grad_({bool})
model.share_memory()
as_integers(model)
randomize(model)
"""
HARD_WEIGHTS = """
with torch.no_grad(): {tensor}.mul_(1e30)
del {tensor}
{tensor}.data = {tensor}.data.double()
{tensor}.data = {tensor}.data.bfloat16()
{tensor}.data = {tensor}.data[:, :1]
{tensor}.data = {tensor}.data.flatten()
{tensor}.data = {tensor}.data.new_zeros(0)
{tensor}.data = {tensor}.data.to_sparse()
{tensor}.data[0] = float('nan')
{tensor}.data[0] = float('inf')
{statistic} = None
conv(model, {n}).bias = None
conv(model, {n}).weight = nn.Parameter(tensor(0, 1, 1, 1))
conv(model, {n}).to('meta')
norm(model, {n}).running_mean = tensor(1, 2)
norm(model, {n}).running_var.fill_(-1)
norm(model, {n}).double()
"""
ATTRIBUTES = """
conv(model, {n}).stride = {axes}
conv(model, {n}).dilation = {axes}
conv(model, {n}).padding = {axes}
conv(model, {n}).padding = 0
conv(model, {n}).output_padding = 0
conv(model, {n}).output_padding = {axes}
norm(model, {n}).eps = 0.1
norm(model, {n}).eps = 1
norm(model, {n}).eps = 0
norm(model, {n}).eps = torch.tensor(0.1)
norm(model, {n}).eps = np.float32(0.1)
norm(model, {n}).momentum = None
norm(model, {n}).momentum = 1
"""
HARD_ATTRIBUTES = """
conv(model, {n}).stride = 0
conv(model, {n}).stride = 1.5
conv(model, {n}).stride = True
conv(model, {n}).stride = None
conv(model, {n}).stride = 2**40
conv(model, {n}).stride = np.int64(2)
conv(model, {n}).stride = torch.tensor(2)
conv(model, {n}).stride = torch.Size({axes})
conv(model, {n}).dilation = 0
conv(model, {n}).padding = -1
conv(model, {n}).padding = [1]
conv(model, {n}).padding = 'same'
conv(model, {n}).padding_mode = 'reflect'
conv(model, {n}).output_padding = 7
conv(model, {n}).kernel_size = (9,)
conv(model, {n}).groups = 2
conv(model, {n}).out_channels = 9
norm(model, {n}).eps = -5.0
norm(model, {n}).eps = 'a'
norm(model, {n}).num_features = 9
norm(model, {n}).track_running_stats = False
"""
MODES = """
model.eval()
model.eval()
model.eval()
model.train()
part(model, {n}).train()
part(model, {n}).eval()
norm(model, {n}).train()
"""
WHOLE = """
model.to(memory_format=torch.{channels_last})
model.to(memory_format=torch.contiguous_format)
model.apply(lambda module: None)
model.to(torch.{dtype}); x = x.detach().to(torch.{dtype})
model.to(torch.{dtype}); x = x.detach().to(torch.{dtype})
model.to(torch.{dtype}); x = x.detach().to(torch.{dtype})
model.to(torch.{dtype})
"""
GRADIENTS = """
y = gradients(model, {leaf})
y = gradients(model, {leaf})
y = gradients(conv(model, 0), {leaf})
y = descend(model, x)
y = descend(model, x, fused=True)
y = checkpointed(model, {leaf})
with torch.autocast('cpu'): y = gradients(model, {leaf})
y = torch.autograd.grad(model({leaf}).sum(), model.parameters(), allow_unused=True)
model.zero_grad()
"""
COPIES = """
model = copy.deepcopy(model)
model = copy.copy(model)
model = copy.deepcopy(copy.copy(model))
model = pickled(model)
model = saved(model)
model, twin = copy.deepcopy(model), model
twin = copy.deepcopy(model)
twin = copy.deepcopy(model).train()
twin = copy.copy(model)
"""
TRANSFORMED = """
{context}y = func_grad(model, x)
{context}y = func_vmap(model, x)
{context}y = func_vmap(model, x, 3)
{context}y = func_ensemble(model, x)
{context}y = func_jvp(model, x)
{context}y = func_vjp(model, x)
{context}y = func_call(model, x)
{context}y = func_call(model, x, 3)
{context}y = forward_ad(model, x)
{context}y = traced(model, x)(x)
{context}y = symbolic(model, x)
{context}y = profiled(model, x)
{context}y = with_global_hook(model, x)
"""
COMPILED = """
{context}y = compiled(model, x)
{context}y = compiled(model, x, 'aot_eager')
{context}y = compiled(model, x, dynamic=True)
{context}y = exported(model, x)
"""
STRUCTURE = """
sequence(model, {n}).append({fused})
sequence(model, {n}).insert({n}, {fused})
sequence(model, {n}).append({conv})
sequence(model, {n}).append(sequence(model, {n})[0])
sequence(model, {n})[0] = {conv}
sequence(model, {n})[-1] = nn.BatchNorm{rank}d({channels})
del sequence(model, {n})[-1]
model = nn.Sequential(model, {fused})
model = nn.Sequential(model, nn.BatchNorm{rank}d({channels}), {fused}).eval()
model = Residual(model)
model = Listed(model)
model = Doubling(model)
parametrized(conv(model, {n}))
weight_norm(conv(model, {n}))
spectral_norm(conv(model, {n}))
old_weight_norm(conv(model, {n}))
parametrize.remove_parametrizations(conv(model, {n}), 'weight')
torch.nn.utils.remove_weight_norm(conv(model, {n}))
own_forward(conv(model, {n}))
{hooked}
conv(model, {n}).__class__ = {subclass}
"""
STATE = """
state = cloned_state(model)
model.load_state_dict(state)
model.load_state_dict(twin.state_dict())
model.load_state_dict({{}})
model.load_state_dict({{k: v * 2 for k, v in cloned_state(model).items()}})
model.load_state_dict({{k: -v for k, v in cloned_state(model).items()}}, assign=True)
model.load_state_dict({{k: v.double() for k, v in cloned_state(model).items()}})
y = model.state_dict()
"""
REST = """
ct.restore(model)
ct.refresh(model)
torch.set_num_threads(2)
torch.set_num_threads(1)
"""
GROUPS = {
    "WEIGHTS": 10, "ATTRIBUTES": 5, "MODES": 6, "WHOLE": 5, "GRADIENTS": 6, "COPIES": 6, "TRANSFORMED": 4, "COMPILED": 0.25,
    "STRUCTURE": 4, "STATE": 3, "REST": 4,
}  # fmt: skip

CONTEXTS = (
    *["torch.no_grad()"] * 16, *["torch.inference_mode()"] * 8, *[""] * 8, "torch.autocast('cpu')",
    "torch.autocast('cpu', torch.float16)", "torch.autocast('cpu'), torch.no_grad()", "torch.device('cpu')",
    "Watching(), torch.no_grad()", "torch.autograd.profiler.profile(), torch.no_grad()",
    "torch.inference_mode(), torch.autocast('cpu')", "torch.autograd.graph.save_on_cpu()",
    "torch.utils.flop_counter.FlopCounterMode(display=False), torch.no_grad()",
    "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.no_grad()",
    "torch.autograd.forward_ad.dual_level(), torch.no_grad()", "torch.autograd.detect_anomaly(check_nan=False)",
    *["ct.functional(), torch.no_grad()"] * 3, "ct.functional()", "torch.device('cpu'), ct.functional()",
    "ct.functional(), torch.device('cpu')", "torch.autocast('cpu'), ct.functional()", "ct.functional(precision='highest')",
    "Watching(), ct.functional()", "ct.functional(), torch.autograd.profiler.profile()",
)  # fmt: skip


def templates(group):
    """Return the templates of a group."""
    return globals()[group].strip().splitlines()
