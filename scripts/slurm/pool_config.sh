# shellcheck shell=bash
# Pools by shell functions, under the names that NeMo RL's own tool gives them; to be sourced:
#
#   source scripts/slurm/pool_config.sh
#   register_external_vllm_pool JUDGE --model … --container … --python … --replicas 2 \
#     --tensor-parallel-size 8 --lb-port 9213 --url-placeholder __JUDGE_URL__
#   external_vllm_pool_env  JUDGE HF_HOME=/lustre/hf
#   external_vllm_pool_args JUDGE --max-model-len 32768
#   validate_external_vllm_submission && external_vllm_plan && external_vllm_submit
#
# They set variables (JUDGE_MODEL, …) and return 2 with a message when they are called wrongly.
# What the values mean is checked by slurm-launcher, all of it at once.

_external_vllm_error() {
  printf 'error: %s\n' "$*" >&2
  return 2
}

_external_vllm_name() {
  [[ ${1-} =~ ^[A-Z][A-Z0-9_]*$ ]] && return 0
  _external_vllm_error "a pool's name is A-Z first, then A-Z, 0-9 and '_', not '${1-}'"
}

_external_vllm_known() {
  _external_vllm_name "${1-}" || return
  case " ${EXTERNAL_VLLM_POOLS-} " in
    *" $1 "*) return 0 ;;
  esac
  _external_vllm_error "no pool $1 is registered; register it first"
}

# Set and export a variable of a pool: NAME ENDING VALUE.
_external_vllm_set() {
  printf -v "$1_$2" '%s' "$3"
  export "$1_${2?}"
}

# Add a line to a variable of a pool: NAME ENDING LINE.
_external_vllm_add() {
  local variable="$1_$2"
  case $3 in
    *$'\n'*) _external_vllm_error "$1: a line's end cannot be in '$3' here; use a pools.yaml" || return ;;
  esac
  _external_vllm_set "$1" "$2" "${!variable:+${!variable}$'\n'}$3"
}

# register_external_vllm_pool NAME --option value …
register_external_vllm_pool() {
  local name=${1-} ending
  _external_vllm_name "$name" || return
  case " ${EXTERNAL_VLLM_POOLS-} " in
    *" $name "*) _external_vllm_error "pool $name is registered already" || return ;;
  esac
  shift
  # Of an earlier registration, or of whoever called us, nothing is to be left.
  for ending in MODEL CONTAINER VLLM_PYTHON REPLICAS TENSOR_PARALLEL_SIZE PIPELINE_PARALLEL_SIZE \
    DATA_PARALLEL_SIZE SPARES MIN_READY LB_PORT URL_PLACEHOLDER SERVED_MODEL_NAME VLLM_PORT \
    STARTUP_TIMEOUT MAX_RESTARTS SHARED_PATHS ENV_VARS VLLM_ARGS; do
    unset "${name}_${ending}"
  done
  while (($#)); do
    if (($# < 2)) || [[ -z $2 ]]; then
      _external_vllm_error "$name: $1 needs a value" || return
    fi
    case $1 in
      --model) ending=MODEL ;;
      --container) ending=CONTAINER ;;
      --python) ending=VLLM_PYTHON ;;
      --replicas) ending=REPLICAS ;;
      --tensor-parallel-size) ending=TENSOR_PARALLEL_SIZE ;;
      --pipeline-parallel-size) ending=PIPELINE_PARALLEL_SIZE ;;
      --data-parallel-size) ending=DATA_PARALLEL_SIZE ;;
      --spares) ending=SPARES ;;
      --min-ready) ending=MIN_READY ;;
      --lb-port) ending=LB_PORT ;;
      --url-placeholder) ending=URL_PLACEHOLDER ;;
      --served-model-name) ending=SERVED_MODEL_NAME ;;
      --vllm-port) ending=VLLM_PORT ;;
      --startup-timeout) ending=STARTUP_TIMEOUT ;;
      --max-restarts) ending=MAX_RESTARTS ;;
      --shared-path) ending=SHARED_PATHS ;;
      *) _external_vllm_error "$name: there is no option $1" || return ;;
    esac
    if [[ $ending == SHARED_PATHS ]]; then
      _external_vllm_add "$name" "$ending" "$2" || return
    else
      _external_vllm_set "$name" "$ending" "$2"
    fi
    shift 2
  done
  export EXTERNAL_VLLM_POOLS="${EXTERNAL_VLLM_POOLS:+$EXTERNAL_VLLM_POOLS }$name"
}

# external_vllm_pool_env NAME VARIABLE=VALUE …
external_vllm_pool_env() {
  local name=${1-} pair
  _external_vllm_known "$name" || return
  for pair in "${@:2}"; do
    if [[ ! $pair =~ ^[A-Za-z_][A-Za-z0-9_]*= ]]; then
      _external_vllm_error "$name: '$pair' is no NAME=VALUE" || return
    fi
    _external_vllm_add "$name" ENV_VARS "$pair" || return
  done
}

# external_vllm_pool_args NAME argument …
external_vllm_pool_args() {
  local name=${1-} word
  _external_vllm_known "$name" || return
  for word in "${@:2}"; do
    _external_vllm_add "$name" VLLM_ARGS "$word" || return
  done
}

_external_vllm_launcher() {
  "${SLURM_LAUNCHER_PYTHON:-python3}" -m slurm_launcher "$@"
}

# Check all of it; nothing is started.
validate_external_vllm_submission() { _external_vllm_launcher validate --from-environment; }
external_vllm_plan() { _external_vllm_launcher plan --from-environment; }
external_vllm_submit() { _external_vllm_launcher submit --from-environment; }
