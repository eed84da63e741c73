
# The word as the shell would pass it on, without running anything that it names.
_rekindle_plain() {
    local word=$1
    case $word in
        \'*|\"*) word=${word:1}; word=${word%[\'\"]} ;;
        "~/"*) word=$HOME/${word:2} ;;
    esac
    printf -v "$2" %s "${word//\\/}"
}

# A name comes from whoever may make a volume: it is compared and quoted, never expanded.
_rekindle_offer() {
    local word=${COMP_WORDS[COMP_CWORD]} plain dir= name at
    local -a words=("${COMP_WORDS[@]:0:COMP_CWORD}") ask=(volume-names "$@") names
    for ((at = 1; at < ${#words[@]}; at++)); do
        [[ ${words[at]} == --dir ]] || continue
        [[ ${words[at + 1]} == = ]] && ((at++))
        _rekindle_plain "${words[at + 1]}" dir
    done
    [[ $dir ]] && ask+=(--dir "$dir")
    _rekindle_plain "$word" plain
    COMPREPLY=()
    mapfile -t names < <(rekindle "${ask[@]}" 2>/dev/null)
    for name in "${names[@]}"; do
        [[ $name == "$plain"* ]] || continue
        case $word in
            \'*) [[ $name == *\'* ]] && continue ;;
            \"*) [[ $name == *[\"\$\`\\!]* ]] && continue ;;
            *) printf -v name %q "$name" ;;
        esac
        COMPREPLY+=("$name")
    done
}

_rekindle_with_names() {
    _rekindle "$@"
    [[ ${COMP_WORDS[COMP_CWORD]} == -* || ${COMP_WORDS[COMP_CWORD - 1]} == --dir ]] && return
    local IFS=' '
    case " ${COMP_WORDS[*]:0:COMP_CWORD} " in
        *' volume move '[!-]*' ') _rekindle_offer --nodes ;;
        TRASH) _rekindle_offer --trash ;;
        VOLUMES) _rekindle_offer ;;
    esac
}
complete -F _rekindle_with_names -o nosort -o bashdefault -o default rekindle
