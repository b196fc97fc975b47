"""Tests of convt.torch in programs: each statement does the same with convt as without it, as `fuzz.models.perform.agree` sees
it. It compares results, errors, warnings, and the state of the model after each statement."""

import pytest
from torch_cases import agree, reset_torch  # noqa: F401

LAYER, CLS = "nn.ConvTranspose2d(3, 4, 3, 2, 1, 1)", "ct.ConvTranspose2d(3, 4, 3, 2, 1, 1)"
CHAIN = f"nn.Sequential({LAYER}, nn.BatchNorm2d(4), nn.Tanh()).eval()"
BEGIN = "randomize(model); x = tensor(0, 2, 3, 3, 2); ct.accelerate(model); y = thrice(model, x)"  # packs the weights
PROGRAMS = {
    "a norm whose product with the weights is not finite": f"""
        model = {CHAIN}; {BEGIN}
        model[1].running_var.fill_(1e-30); model[1].eps = 1e-30; x = x * 1e-30
        with torch.no_grad(): model[0].weight.mul_(1e30)
        y = z = thrice(model, x)
        assert z[0].isfinite().all()
    """,
    **{f"a norm whose product with the weights is not normal, {dtype}": f"""
        model = {CHAIN}; {BEGIN}
        tiny = torch.finfo(torch.{dtype}).tiny
        model.to(torch.{dtype}); x = x.to(torch.{dtype}) * tiny ** -(2 / 3)  # so large that the output is normal
        for each in (model[0].bias, model[1].bias, model[1].running_mean): each.data.zero_()
        model[1].weight.data.fill_(tiny**0.5 * 1.3)
        with torch.no_grad(): model[0].weight.copy_(tiny ** (2 / 3) * model[0].weight.sign() * 1.7)
        y = z = [each * tiny**-0.5 for each in thrice(model, x)]
        assert z[0].abs().max() > 0.1
    """ for dtype in ("float32", "float64")},
    "tensors are swapped": f"""
        torch.__future__.set_swap_module_params_on_conversion(True)
        model = {LAYER}; {BEGIN}
        model.double().load_state_dict({{name: each * 2 for name, each in model.state_dict().items()}})
        y = thrice(model, x.double())
        torch.__future__.set_swap_module_params_on_conversion(False)
        model = {LAYER}; {BEGIN}
        ct.refresh(model)  # after which also a model that was packed earlier can be swapped
        torch.__future__.set_swap_module_params_on_conversion(True)
        model.double().load_state_dict({{name: each * 2 for name, each in model.state_dict().items()}})
        y = thrice(model, x.double())
        torch.__future__.set_swap_module_params_on_conversion(False)
    """,
    **{f"what an interrupted transform leaves in {name}": f"""
        up = {model}; x = tensor(0, 2, 3, 3, 2); model = nn.ModuleDict({{"first": up, "second": up}})
        ct.accelerate(model)
        def call(parameters): functional_call(model, parameters, (x,))
        torch.func.grad(call)(dict(model.named_parameters()))  # refused: a ModuleDict has no forward
        y = thrice(model["first"], x)
    """ for name, model in (("a layer", LAYER), ("a chain", CHAIN))},
    **{f"copies of a copy whose model is gone, of {name}": f"""
        model = {model}; {BEGIN}
        twin = copy.copy(model)
        twin._modules = {{name: copy.copy(module) for name, module in twin._modules.items()}}
        {again}
        del model
        import gc; gc.collect()
        y = traced(twin, x)(x)
        y = exported(copy.deepcopy(twin), x)
        several = [twin, copy.deepcopy(twin), copy.deepcopy(copy.deepcopy(twin)), pickled(twin)]
        y = [thrice(each, x) for each in several]
        for each in several: ct.accelerate(each)
        y = [thrice(each, x) for each in several]
        for each in several: ct.restore(each)
        y = [thrice(each, x) for each in several]
    """ for name, model, again in (
        ("a layer", LAYER, "pass"), ("a layer that is accelerated again", LAYER, "ct.accelerate(twin)"),
        ("a chain", CHAIN, "pass"),
    )},
    "shallow copies have attributes of their own": f"""
        model = {LAYER}; {BEGIN}
        twin = copy.copy(model)
        twin.padding, twin.output_padding = (0, 0), (0, 0)
        y = [model(x), twin(x)]
        del model
        y = twin(x)
        replica = twin._replicate_for_data_parallel()  # its tensors are plain attributes
        replica.weight, replica.bias = twin.weight * 2, twin.bias
        y = replica(x)
    """,
    "views become negative, and negative views change": """
        x, w, b = tensor(0, 2, 3, 3, 2), tensor(1, 3, 4, 3, 3), tensor(2, 4)
    """ + """
        y = [ct.conv_transpose2d(x, w, b), ct.conv_transpose2d(x, w, b), ct.conv_transpose2d(x, w, b)]
        w.data = torch._neg_view(w.data)
        y = [ct.conv_transpose2d(x, w, b), ct.conv_transpose2d(x, w, b), ct.conv_transpose2d(x, w, b)]
        b.data = torch._neg_view(b.data)
    """ * 3,
    **{f"negative views are never old, freeze={freeze}": f"""
        x, plain = tensor(0, 2, 3, 3, 2), tensor(1, 3, 4, 3, 3)
        weights, biases = torch.complex(plain, plain), torch.complex(tensor(2, 4), tensor(3, 4))
        w, b = weights.conj().imag, biases.conj().imag
        y = [ct.conv_transpose2d(x, w, freeze={freeze}), ct.conv_transpose2d(x, w, freeze={freeze})]
        weights.mul_(3)
        y = [ct.conv_transpose2d(x, w, freeze={freeze}), ct.conv_transpose2d(x, w, freeze={freeze})]
        y = [ct.conv_transpose2d(x, plain, b, freeze={freeze}), ct.conv_transpose2d(x, plain, b, freeze={freeze})]
        biases.mul_(3)
        y = [ct.conv_transpose2d(x, plain, b, freeze={freeze}), ct.conv_transpose2d(x, plain, b, freeze={freeze})]
    """ for freeze in (False, True)},
    "tensors that escaped from vmap": """
        x, w, escaped = tensor(0, 2, 3, 3, 2), tensor(1, 2, 3, 4, 3, 3), []
        y = torch.vmap(lambda each: (escaped.append(each), each)[1])(w)
        y = ct.conv_transpose2d(x, escaped[0])  # refused
        y = ct.conv_transpose2d(x.requires_grad_(), escaped[0])  # refused
    """,
    **{f"what is no integer: {wrong}, gradients={gradients}": f"""
        x, w = tensor(0, 2, 3, 3, 2), tensor(1, 3, 4, 3, 3, grad={gradients})
        y = ct.conv_transpose2d(x, w, None, {wrong})  # refused
        y = [ct.conv_transpose2d(x, w, None, {right}), ct.conv_transpose2d(x, w, None, {right})]
        y = ct.conv_transpose2d(x, w, None, {wrong})  # refused: also after a call with the integers that are equal
    """ for gradients in (False, True) for wrong, right in (
        ("1, 0, 0, True", "1, 0, 0, 1"), ("(3.0, 2.0)", "(3, 2)"), ("1, (True, 2)", "1, (1, 2)"),
        ("1, 0, 0, 1, (1.0, 2)", "1, 0, 0, 1, (1, 2)"),
    )},
    "the weight of a restored module is deleted": """
        model = ct.ConvTranspose2d(3, 4, 3)
        spectral_norm(model)
        ct.restore(model)
        del model.weight  # refused
    """,
    "a module of convt's class becomes another": f"""
        model = {CLS}; {BEGIN}
        class Derived(nn.ConvTranspose2d): pass
        model.__class__ = Derived
        ct.accelerate(model)
        y = thrice(model, x)
        ct.restore(model)
    """,
    "parametrizations before and after": f"""
        model = weight_norm({LAYER}); {BEGIN}
        twin = copy.deepcopy(model)
        y = twin(x)
        parametrize.remove_parametrizations(model, "weight")
        y = model(x)
        model = {LAYER}; {BEGIN}
        spectral_norm(model).eval()
        y = copy.deepcopy(model)(x)
        ct.restore(model)
        parametrize.remove_parametrizations(model, "weight")
    """,
    "functional calls and ensembles": f"""
        model = {LAYER}; {BEGIN}
        twin = copy.deepcopy(model)
        twin.weight.data.mul_(2)
        y = func_grad(model, x)
        parameters, buffers = torch.func.stack_module_state([model, twin])
        base = copy.deepcopy(model).to("meta")
        y = torch.vmap(lambda p: functional_call(base, p, (x,)))(parameters)
    """,
    "tangents of weights and biases": """
        x, w, b = tensor(0, 2, 3, 3, 2), tensor(1, 3, 4, 3, 3), tensor(2, 4)
        y = torch.func.jvp(lambda t: ct.conv_transpose2d(t, w, b, 2, 1, 1), (x,), (tensor(3, 2, 3, 3, 2),))
        y = torch.func.jvp(lambda t: ct.conv_transpose2d(x, t, b, 2, 1, 1), (w,), (tensor(3, 3, 4, 3, 3),))
        y = torch.func.jvp(lambda t: ct.conv_transpose2d(x, w, t, 2, 1, 1), (b,), (tensor(3, 4),))
    """,
    "a Sequential in every mode": f"""
        model = {CHAIN}; {BEGIN}
        with torch.inference_mode(): y = [model(x), model(x), model(x)]
        with torch.no_grad(): y = func_vmap(model, x)
        with torch.no_grad(): y = compiled(model, x)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16): y = model(x)
        y = [thrice(each, x) for each in (copy.deepcopy(model), pickled(model))]
        model(x[0])  # refused
    """,
    "a Sequential in another order, another forward of an activation, and a subclass of a layer": f"""
        class Reversed(nn.Sequential):
            def __iter__(self): return reversed(list(nn.Sequential.__iter__(self)))
        class Called(nn.ReLU):
            def forward(self, x): return nn.ReLU.forward(self, x) + 1
        model = Reversed(nn.ReLU(), nn.ConvTranspose2d(3, 2, 2)); {BEGIN}
        model = nn.Sequential(nn.ConvTranspose2d(3, 2, 2), Called()); {BEGIN}
        model = nn.Sequential(Kin2d(3, 2, 2), nn.ReLU()); {BEGIN}
    """,
    "tensors of inference mode, which count no changes": """
        model, x = ct.ConvTranspose2d(4, 4, 3, 2), tensor(0, 1, 4, 5, 5)
        with torch.inference_mode(): y, w = [model(x), model(x), model(x)], tensor(1, 4, 4, 3, 3)
        with torch.inference_mode(): y = [ct.conv_transpose2d(x, w), ct.conv_transpose2d(x, w), ct.conv_transpose2d(x, w)]
        with torch.inference_mode(): w.add_(1)
        with torch.inference_mode(): y = [ct.conv_transpose2d(x, w), ct.conv_transpose2d(x, w), ct.conv_transpose2d(x, w)]
    """,
    "filters made at each call": """
        x = tensor(0, 1, 4, 5, 5)
        y = [ct.conv_transpose2d(x, w) for n in range(50) for w in [torch.full((4, 4, 3, 3), float(n))] for _ in range(2)]
        x, w = tensor(0, 1, 8, 9), tensor(1, 8, 8, 3)
        y = [ct.conv_transpose1d(x, w.clone().transpose(0, 1) if n % 2 else w.clone()) for n in range(8)]  # in the same memory
    """,
    "equal biases of two tensors": """
        w, first, second = tensor(1, 4, 4, 3, 3), torch.zeros(4), torch.zeros(4)
        y = [ct.conv_transpose2d(tensor(0, 1, 4, 5, 5), w, first) for _ in range(3)]
        first.add_(1)
        y = [ct.conv_transpose2d(tensor(0, 1, 4, size, size), w, second) for size in (1, 2, 40, 90)]
    """,
    "frozen weights are the present ones where gradients are recorded": f"""
        model = {LAYER}; x = tensor(0, 2, 3, 3, 2); ct.accelerate(model, freeze=True); y = thrice(model, x)
        model.weight.data.mul_(2)
        y = model(x)
    """,
    "changes of weights": "\n".join([
        "model, x = ct.ConvTranspose2d(8, 8, 4, 2, 1), tensor(0, 1, 8, 6, 6); y = thrice(model, x)",
        *(f"with torch.no_grad(): {change}\ny = thrice(model, x)" for change in (
            "model.weight.mul_(2)", "model.bias.add_(1)", "model.weight.data.mul_(2)", "model.bias.data.mul_(2)",
            "model.to(memory_format=torch.channels_last)", "model.weight.data.mul_(2)",
            "by_numpy(model.weight, 2)",  # torch counts neither this change nor those of ``data``
            "model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()})",
            "model.weight = nn.Parameter(tensor(1, 8, 8, 4, 4))", "model.weight.data = tensor(2, 8, 8, 4, 4)",
            "nn.init.normal_(model.weight)", "model.to(torch.float64).to(torch.float32)",
        )),
    ]),
    "the slope of a PReLU": "\n".join([
        "model = nn.Sequential(nn.ConvTranspose2d(4, 6, 4, 2, 1), nn.PReLU()).eval(); x = tensor(0, 2, 4, 5, 5)",
        "ct.accelerate(model)",
        *(f"nn.init.constant_(model[1].weight, float('{slope}')); y = thrice(model, x)"
          for slope in (0.25, -2.0, 0.0, "nan", "inf", 0.5)),
        "model[1].double()", "y = model(x)  # refused",
    ]),
    "a module is shared between processes and saved": """
        model, x = ct.ConvTranspose2d(4, 4, 3), tensor(0, 1, 4, 5, 5)
        model.share_memory()
        y = thrice(model, x)
        y = thrice(saved(model), x)
    """,
}  # fmt: skip

# Functions and methods that a program replaces while a model that calls them is in use.
CHANGED = [
    (LAYER, "nn.ConvTranspose2d", "forward"), ("Kin2d(3, 4, 3)", "Kin2d", "forward"),
    (LAYER, "nn.functional", "conv_transpose2d"), (CHAIN, "nn.ConvTranspose2d", "forward"), (CHAIN, "nn.Tanh", "forward"),
    (CHAIN, "nn.BatchNorm2d", "forward"), (CHAIN, "nn.functional", "conv_transpose2d"),
    (f"Chain(*{CHAIN}).eval()", "Chain", "forward"),
]  # fmt: skip
PROGRAMS |= {
    f"{place}.{name} changes, {'a chain' if 'Tanh' in model else 'a layer'}": f"""
        model = {model}; {BEGIN}
        with doubled({place}, {name!r}), torch.no_grad(): y = model(x)
        y = thrice(model, x)
    """ for model, place, name in CHANGED
}  # fmt: skip

# Layers in channels last, of which some sizes leave the strides open, with another layer behind, fused or not.
PROGRAMS |= {
    f"strides behind {behind}, {channels} channels, size {size}": f"""
        model = nn.Sequential(nn.ConvTranspose2d(2, {channels}, 1), nn.{behind}).eval().to(memory_format=torch.channels_last)
        ct.accelerate(model)
        x = tensor(0, 2, 2, {size}, {size}); twice = [x, torch.stack([*x.movedim(1, -1)]).movedim(-1, 1)]
        y = [thrice(model, x) for x in twice]
        model[1].register_forward_hook(lambda *a: None)
        y = [thrice(model, x) for x in twice]
    """ for channels, size in ((1, 4), (3, 1), (1, 1), (3, 4))
    for behind in (f"BatchNorm2d({channels})", "ReLU()", "Hardswish()", "GELU()")
}  # fmt: skip

# Norms of weights, which compute the weights at each call.
PROGRAMS |= {
    f"{name} of {cls}": f"""
        model = {norm}({cls}).train(); {BEGIN}
        for each in model.parameters(): nn.init.normal_(each, generator=torch.Generator().manual_seed(each.dim()))
        with torch.no_grad(): model(x, output_size=(90, 90))  # refused: before torch reads, and so changes, the weights
        with torch.no_grad(): model(x, output_size=(90, 90))  # refused
        y = thrice(model, x)
        ct.refresh(model); ct.accelerate(model, freeze=True)
        y = thrice(model, x)  # a spectral norm changes its weights at each call in training
        model.eval()
        ct.refresh(model)
        y = thrice(model, x)
        with torch.no_grad(): y = [func_call(model, x), model(x), model(x)]
        model.to("meta")
        with torch.no_grad(): y = model(x.to("meta"))
    """
    for name, norm in (
        ("weight norm", "weight_norm"), ("spectral norm", "spectral_norm"), ("old weight norm", "old_weight_norm"),
        ("old spectral norm", "torch.nn.utils.spectral_norm"),
    ) for cls in (LAYER, CLS)
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_does_without_convt(name):
    """Check that statements marked as refused raise torch's error, and all others none."""
    lines = "\n".join(line.removeprefix(" " * 8) for line in PROGRAMS[name].splitlines())
    found = agree(lines)
    assert sum(each.error is not None for each in found) == lines.count("# refused"), [each.error for each in found]
